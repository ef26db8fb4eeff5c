"""What a GpuPool may lay over pods: placement, environment, further containers, volumes, resource claims."""

from aegaeon_operator.spec.pods.template import PodTemplate

__all__ = ["PodTemplate"]
