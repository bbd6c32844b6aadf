"""Thread-local attributes that are set for a while."""

from keras.src.backend.common import global_state

# Whether a region runs again, where an engine puts its layers in order then.
AGAIN = "remat_runs_again"


class attributes:
    """Sets thread-local attributes, and puts back what they were.

    Args:
        **values: The attributes.
    """

    def __init__(self, **values):
        self.values = values

    def __enter__(self):
        get = global_state.get_global_attribute
        self.before = {name: get(name) for name in self.values}
        self.set(self.values)

    def __exit__(self, *args):
        self.set(self.before)

    def set(self, values):
        for name, value in values.items():
            global_state.set_global_attribute(name, value)
