"""The stand-in for the engine's device, of the vllm that was imported."""


def prepare_on_import(vllm):
    """vllm was imported, and nothing of it is used yet."""
    if vllm.__version__.startswith("0.14."):
        from npu_engine import prepare_on_import as prepare
    else:
        from npu_training_0_9 import prepare_on_import as prepare
    prepare(vllm)
