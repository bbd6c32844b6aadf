"""A stand-in: nothing is ever differentiated here."""

from keras.src.backend.common import remat_plain_profile

UPDATES_AT_ONCE = remat_plain_profile.UPDATES_AT_ONCE
STEPS_ALIKE = remat_plain_profile.STEPS_ALIKE
KEPT_STAYS = remat_plain_profile.KEPT_STAYS
LOSS_COPIES = remat_plain_profile.LOSS_COPIES
trace = remat_plain_profile.trace
free_memory = remat_plain_profile.free_memory
