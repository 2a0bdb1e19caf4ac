"""Stands for torchvision, whose wheel is built for one torch: vllm from 0.16 imports it with its processors of images.

Nothing that is tested here looks at an image. What is asked of it at import is there; what works on an image is not.
"""
