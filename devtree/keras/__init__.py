"""Makes `import keras` mean this tree.

The wheel maps `keras/api` to the package root; a source tree has no such map.
Without this file, tests that run in the tree would silently import whatever
Keras is installed.
"""

import os

_api = os.path.join(os.path.dirname(os.path.abspath(__file__)), "api")
__path__.append(_api)
with open(os.path.join(_api, "__init__.py")) as _source:
    exec(compile(_source.read(), _source.name, "exec"))
