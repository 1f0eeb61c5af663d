"""NVIDIA's packages, with Tutti's library in the place of nvidia.nccl; the others are found behind this folder."""

import pkgutil

__path__ = pkgutil.extend_path(__path__, __name__)
