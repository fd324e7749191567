"""What a message waits for that this router owns."""

from flowcatalyst.control.view import RouterView
from flowcatalyst.core.message import DEFAULT_POOL, Delivery
from flowcatalyst.router.explain import CONFIRMATION, Wait


def wait_of(app: RouterView, delivery: Delivery) -> Wait:
    if not delivery.pool:
        return Wait(f"free capacity in pool {pool_code_of(delivery)}")
    pool = app.engine.acts.pool_of(delivery)
    # Its pool is done with it, but it is ours until its queue confirmed the end.
    return CONFIRMATION if pool is None else pool.explain(delivery)


def pool_code_of(delivery: Delivery) -> str:
    return delivery.pool or delivery.pointer.pool_code or DEFAULT_POOL
