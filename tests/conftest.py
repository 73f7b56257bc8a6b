"""The models of the tests are tiny: more threads only wait for each other."""

import torch

torch.set_num_threads(1)
