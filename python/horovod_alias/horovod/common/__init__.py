# SPDX-License-Identifier: Apache-2.0
"""The modules from which scripts for Horovod import some names."""
