"""Tutti under the name of NVIDIA's package: lib/libnccl.so.2 and include/."""
