# SPDX-License-Identifier: Apache-2.0
"""python -m tutti run -n 4 python3 train.py"""

from tutti._program import main

main()
