"""What the page shows of the running plan: its picture, the methods of its stores, and what happens to failed records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from http import HTTPStatus

from millstream.core.engine.policy import STAGES, ErrorPolicies, Policy, Retrying
from millstream.core.model.answers import DeadLetter
from millstream.core.model.calls import Calls
from millstream.core.queries.methods import METHODS
from millstream.core.topology.pictures.svg import svg
from millstream.core.topology.plan import Plan
from millstream.edge.web.health import Viewer
from millstream.edge.web.listener import HttpRequest, HttpResponse, Route


def plan_routes(
    viewer: Viewer, plan: Callable[[], Plan], policies: ErrorPolicies
) -> dict[tuple[str, str], Route]:
    """Return the routes that describe the running plan. Before there is one, they answer with status 503."""

    def described(response: Callable[[Plan], HttpResponse]) -> Route:
        def route(request: HttpRequest) -> HttpResponse:
            if viewer.now().status.state == "starting":
                return HttpResponse.error("not planned yet", HTTPStatus.SERVICE_UNAVAILABLE)
            return response(plan())

        return route

    return {
        ("GET", "/api/topology.svg"): described(
            lambda current: HttpResponse(svg(current).encode(), "image/svg+xml")
        ),
        ("GET", "/api/methods"): described(lambda current: HttpResponse.json(methods_of(current))),
        ("GET", "/api/policies"): described(
            lambda current: HttpResponse.json(policies_of(current, policies))
        ),
    }


def methods_of(plan: Plan) -> dict[str, dict[str, dict[str, object]]]:
    """Return the methods that questions can call on each store, with their arguments."""
    parts = (*plan.subtopologies, *plan.global_parts)
    return {
        store: {name: asdict(method) for name, method in METHODS[type(spec)].items()}
        for part in parts
        for store, spec in sorted(part.stores.items())
    }


def policies_of(plan: Plan, policies: ErrorPolicies) -> dict[str, object]:
    """Return as text what happens to failed records, and the dead-letter topics. Error handlers may choose other topics."""
    topic = policies.dead_letter_topic
    nodes = {name: node for sub in plan.subtopologies for name, node in sub.nodes.items()}
    calls = {name: getattr(node, "calls", None) for name, node in nodes.items()}
    return {
        "stages": {stage: policy_text(policies.of(stage), topic) for stage in STAGES},
        "operators": {name: policy_text(policy, topic) for name, policy in policies.operators.items()},
        "calls": {
            name: policy_text(each.on_failure, topic)
            for name, each in calls.items()
            if isinstance(each, Calls)
        },
        "topics": sorted(policies.topics | plan.failure_topics),
    }


def policy_text(policy: Policy, topic: str | None) -> str:
    """Return an error policy as text. An error handler is only named, because its attributes may be secrets.

    Example:
        >>> policy_text(Retrying(3, then="dead_letter"), "failed")
        "3 attempts, then dead letter to 'failed'"
    """
    if isinstance(policy, Retrying):
        return f"{policy.attempts} attempts, then {policy_text(policy.then, topic)}"
    if isinstance(policy, DeadLetter):
        return f"dead letter to {policy.text!r}"
    if callable(policy):
        return f"error handler {getattr(policy, '__qualname__', type(policy).__qualname__)}"
    if policy == "dead_letter":
        return f"dead letter to {topic!r}"
    if policy == "fail" and topic is not None:
        return f"fail, with a dead letter to {topic!r}"
    return policy
