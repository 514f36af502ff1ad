"""The page of an application: shows its activity on its topology, queries its stores, and pauses, throttles and resumes topics.

The files of the page contain no data, and anyone who can reach the port can load them. Data and commands need a token. Each start creates
a new token, in a file that only the application's user may read. The URL contains the token after ``#``, a part that browsers do not send;
the page sends the token in a header, which pages of other origins cannot do.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Protocol

from millstream.core.engine.policy import STAGES, ErrorPolicies, Policy, Retrying
from millstream.core.model.answers import DeadLetter
from millstream.core.model.calls import Calls
from millstream.core.model.errors import ControlError, QueryError
from millstream.core.queries.methods import METHODS
from millstream.core.queries.question import Answer as QueryAnswer
from millstream.core.queries.question import Question
from millstream.core.topology.pictures.svg import svg
from millstream.core.topology.plan import Plan
from millstream.edge.control.remote_commands import Controllable
from millstream.edge.metrics.application_metrics import Measured
from millstream.edge.web.health import Viewer
from millstream.edge.web.listener import Guard, HttpRequest, HttpResponse, Route

_API: Final = "/api/"
_STATIC: Final = Path(__file__).with_name("static")
_FILES: Final = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/queries.js": ("queries.js", "text/javascript; charset=utf-8"),
}


class Shown(Measured, Controllable, Protocol):
    """An application with a page."""

    def stores(self) -> Mapping[str, str]: ...

    def ask(self, question: Question) -> QueryAnswer: ...


def guard_of(token: str) -> Guard:
    """Return a guard that refuses data and commands to requests without the token."""
    expected = f"Bearer {token}".encode()

    def guard(path: str, request: HttpRequest) -> HttpResponse | None:
        given = request.headers.get("authorization", "").encode()
        if not path.startswith(_API) or secrets.compare_digest(given, expected):
            return None
        return HttpResponse.error("the token is missing or wrong", HTTPStatus.UNAUTHORIZED)

    return guard


def page_routes(
    application: Shown, viewer: Viewer, plan: Callable[[], Plan], policies: ErrorPolicies
) -> Mapping[tuple[str, str], Route]:
    return {
        **{("GET", path): _file(*file) for path, file in _FILES.items()},
        ("GET", f"{_API}state"): lambda request: _state(viewer),
        **plan_routes(viewer, plan, policies),
        **_commands(application, viewer),
        **query_routes(application),
    }


def _file(name: str, kind: str) -> Route:
    content = (_STATIC / name).read_bytes()
    return lambda request: HttpResponse(content, kind)


def _state(viewer: Viewer) -> HttpResponse:
    view = viewer.now()
    return HttpResponse.json(
        {"application": view.application, "status": asdict(view.status), "numbers": view.by_metric()}
    )


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


def _commands(application: Shown, viewer: Viewer) -> dict[tuple[str, str], Route]:
    def pause(request: HttpRequest) -> HttpResponse:
        application.pause(_topics(request))
        return _state(viewer)

    def resume(request: HttpRequest) -> HttpResponse:
        application.resume(_topics(request))
        return _state(viewer)

    def throttle(request: HttpRequest) -> HttpResponse:
        topic, rate = request.body.get("topic"), request.body.get("records_per_second")
        if not isinstance(topic, str) or isinstance(rate, bool) or not isinstance(rate, int | None):
            raise ControlError("throttle needs a topic and a whole number of records per second, or null")
        application.throttle(topic, rate)
        return _state(viewer)

    return {("POST", f"{_API}{command.__name__}"): command for command in (pause, resume, throttle)}


def query_routes(application: Shown) -> dict[tuple[str, str], Route]:
    def stores(request: HttpRequest) -> HttpResponse:
        return HttpResponse.json(application.stores())

    def store(request: HttpRequest) -> HttpResponse:
        try:
            found = application.ask(_question(request.body))
        except QueryError as error:
            return HttpResponse.error(str(error), HTTPStatus.BAD_REQUEST)
        return HttpResponse.json(vars(found))

    return {("GET", f"{_API}stores"): stores, ("POST", f"{_API}store"): store}


def _question(body: Mapping[str, Any]) -> Question:
    store, method, arguments = body.get("store"), body.get("method", "all"), body.get("arguments", [])
    if not (isinstance(store, str) and isinstance(method, str) and isinstance(arguments, list)):
        raise QueryError(
            "a query needs the name of a store, and may have the name of a method and a list of arguments"
        )
    limit, max_lag, timestamps = body.get("limit"), body.get("max_lag"), body.get("timestamps", False)
    return Question(store, method, tuple(arguments), limit, timestamps, max_lag, text=True)


def _topics(request: HttpRequest) -> list[str] | None:
    topics = request.body.get("topics")
    if topics is None or (isinstance(topics, list) and all(isinstance(topic, str) for topic in topics)):
        return topics
    raise ControlError("topics must be a list of names; leave it out for all topics")
