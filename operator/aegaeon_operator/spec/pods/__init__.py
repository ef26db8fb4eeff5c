"""A GpuPool's templates for pods: placement, environment, additional containers, volumes, resource claims."""

from aegaeon_operator.spec.pods.template import PodTemplate

__all__ = ["PodTemplate"]
