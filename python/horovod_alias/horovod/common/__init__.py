# SPDX-License-Identifier: Apache-2.0
"""Where Horovod's own scripts import some names from."""
