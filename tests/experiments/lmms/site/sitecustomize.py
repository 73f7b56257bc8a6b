"""On the PYTHONPATH of `make test-eval`.

lmms-eval requires torchvision, whose build on PyPI is for CUDA: beside a CPU build of torch it stops at two operators that it
did not bring. They are declared here when torchvision is first imported; nothing calls them.
"""

import sys
from importlib.metadata import PackageNotFoundError, version


class Declare:
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            if torch.version.cuda is None and "+cpu" not in version("torchvision"):
                self.library = torch.library.Library("torchvision", "DEF")
                self.library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
                self.library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
                sys.torchvision_schemas = self.library  # as long as the process lives


try:
    version("torchvision")
except PackageNotFoundError:
    pass
else:
    sys.meta_path.insert(0, Declare())
