from launch_support import without_torch

__all__ = ["without_torch"]
