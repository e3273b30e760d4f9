"""`tfring.ray.RayExecutor`: ranks that are actors of Ray.

ray is imported when an executor is made.
"""

from tfring.ray.executor import RayExecutor as RayExecutor
