from tfring import (
    allgather_object,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
