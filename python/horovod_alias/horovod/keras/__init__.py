# SPDX-License-Identifier: Apache-2.0
"""tutti.tensorflow.keras: Keras 3 is one package, with TensorFlow and by itself."""

import importlib
import sys

_target = importlib.import_module("tutti.tensorflow.keras")
sys.modules[f"{__name__}.callbacks"] = importlib.import_module("tutti.tensorflow.keras.callbacks")
sys.modules[__name__] = _target
