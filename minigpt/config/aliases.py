"""Names that nanoGPT and Hugging Face use for settings. They are options of `train` if their value means the same."""

ALIASES = {
    # nanoGPT
    "block_size": "model.context",
    "dataset": "data.source",
    "decay_lr": "optim.schedule (constant: no decay)",
    "eval_interval": "train.eval_every",
    "eval_iters": "train.eval_every (each evaluation reads the whole validation split)",
    "gradient_accumulation_steps": "train.micro_batch_size (sequences per forward pass)",
    "learning_rate": "optim.lr",
    "log_interval": "train.log_every",
    "lr_decay_iters": "train.steps (the schedule ends with the run)",
    "max_iters": "train.steps",
    "max_new_tokens": "sample.length",
    "min_lr": "optim.min_lr (a fraction of the peak)",
    "seed": "train.seed",
    "start": "sample.prompt",
    "vocab_size": "data.tokenizer (the vocabulary comes from the text)",
    "warmup_iters": "optim.warmup (a fraction of the run)",
    # Hugging Face
    "eval_steps": "train.eval_every",
    "hidden_size": "model.n_embd",
    "lr_scheduler_type": "optim.schedule",
    "max_grad_norm": "optim.grad_clip",
    "max_position_embeddings": "model.context",
    "max_steps": "train.steps",
    "num_attention_heads": "model.n_head",
    "num_hidden_layers": "model.n_layer",
    "num_train_epochs": "train.epochs",
    "per_device_train_batch_size": "train.batch_size",
    "warmup_steps": "optim.warmup (a fraction of the run)",
}
