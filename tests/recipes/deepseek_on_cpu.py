"""What a whole run of DeepSeek wants of the stand-ins from verl 0.9 on beside what every run has."""


def name_the_device(device):
    """mbridge.utils.device, of the repository, asks torch on its own: weights are read onto the CPU, where the stand-in's tensors are."""
    device.get_device_name = lambda: "cpu"


def prepare_engine(vllm):
    """patchctl_standins.engine with latent attention, of which other models have none. Proofs name that module, so that it is not there."""
    import npu_experts_0_23
    import npu_latent_0_23
    from patchctl_standins.engine import prepare_on_import

    npu_experts_0_23._register_customop = npu_latent_0_23._register_customop
    prepare_on_import(vllm)
