"""Parts of prepare_data.py, weights.py and fp8_to_bf16.py. They run under the training environment's Python."""
