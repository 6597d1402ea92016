"""From files to batches: sources, downloads, tokenizers, encoding."""
