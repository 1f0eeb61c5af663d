# SPDX-License-Identifier: Apache-2.0
"""Helpers that scripts and tests for Horovod import."""
