"""Models that outgrow a device: each process holds some rows of every tensor (FSDP2).

PyTorch's `fully_shard` gathers the weights of a block before it runs, and adds the gradients to the rows after it
(https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html).
"""

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from minigpt.config.schema import ModelConfig
from minigpt.model.device import Runtime
from minigpt.model.gpt import GPT, position_buffers
from minigpt.training.parallel import Processes


def build_fsdp(config: ModelConfig, vocab_size: int, runtime: Runtime, processes: Processes) -> GPT:
    """Return a model with undefined weights. Each process holds some rows of each.

    With `runtime.dtype` bfloat16, blocks gather their weights in bfloat16. The stored weights, the sums of gradients
    and the residual stream are float32, as in one process.
    """
    with torch.device("meta"):  # no process allocates the whole model
        model = GPT(config, vocab_size)
    mesh = DeviceMesh.from_group(processes.group, runtime.torch_device.type)
    policy = MixedPrecisionPolicy()
    if runtime.dtype == "bfloat16":
        policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)  # also after an evaluation
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # add up gradients: losses are already parts of the mean
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no other
    model.to_empty(device=runtime.device)
    for name, buffer in position_buffers(config).items():
        if buffer is not None:
            getattr(model, name).copy_(buffer)
    return model
