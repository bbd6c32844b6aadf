"""`keras.ops.remat_name` as a node of a graph."""

from keras.src.backend import KerasTensor
from keras.src.backend.common.remat_op import remat_name
from keras.src.ops.operation import Operation


class RematName(Operation):
    def __init__(self, value_name, *, name=None):
        super().__init__(name=name)
        self.value_name = value_name

    def call(self, x):
        return remat_name(x, self.value_name)

    def compute_output_spec(self, x):
        return KerasTensor(x.shape, dtype=x.dtype, sparse=x.sparse)
