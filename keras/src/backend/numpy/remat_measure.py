"""NumPy keeps nothing for a backward pass: nothing to measure."""


def kept_values(forward, data, variables):
    raise ValueError(
        "`remat_report` measures what training keeps. Received: backend "
        "'numpy', which does not train. Set `KERAS_BACKEND` to 'jax', "
        "'tensorflow' or 'torch'."
    )


peak_bytes = kept_values
