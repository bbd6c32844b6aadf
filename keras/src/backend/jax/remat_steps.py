"""Steps of the trainer on JAX, which takes the values out of its variables."""

import functools


def keeping_state(trainer, step):
    """Makes a step that fails put the values back into the variables.

    A budget that is too small, for one, is found while a step is traced. The
    trainer would put back what comes out of a step, and nothing does then.

    Args:
        trainer: The model.
        step: Takes the state and the data of a step.

    Returns:
        A function with the same arguments.
    """

    @functools.wraps(step)
    def call(state, data):
        try:
            return step(state, data)
        except BaseException:
            put_back(trainer, state)
            raise

    return call


def put_back(trainer, state):
    """Gives variables without a value the one of the state, if it is there."""
    groups = [trainer.trainable_variables, trainer.non_trainable_variables]
    if len(state) == 4:
        groups.append(trainer.optimizer.variables)
    if len(state) > 2:
        groups.append(trainer.metrics_variables)
    for variables, values in zip(groups, state):
        for variable, value in zip(variables, values):
            # What the step was given for good is gone.
            if variable._value is None and not value.is_deleted():
                variable._value = value
