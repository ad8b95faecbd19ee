"""User functions as ops: which parameters are ours, which are Dagster's, and one op function made of both."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_idempotent.definitions.resources import LedgerResource
from dagster_idempotent.errors import ConfigurationError

Body = Callable[..., Any]
RESOURCE_PARAM: object = getattr(dg.ResourceParam[object], "__metadata__", ())
# Names of our ops' own parameters, and the one class that a user's function may ask for under them.
RESERVED: Mapping[str, Any] = {
    "ledger": LedgerResource,
    "allocator": None,
    "task": None,
    "raw": None,
    "candidate": None,
    "result": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UserFunction:
    """A function of the user: `given` are the parameters that we fill, by name; the rest are config and resources."""

    function: Body
    given: frozenset[str]
    takes_context: bool
    config: type[Any] | None
    resources: Mapping[str, Any]

    def call(self, context: dg.OpExecutionContext, given: Mapping[str, object], injected: Mapping[str, object]) -> Any:  # noqa: ANN401 - whatever the user returns
        """Call the user's function with what it asks for."""
        arguments = {name: given[name] for name in self.given}
        arguments |= {name: injected[name] for name in self.resources}
        if self.takes_context:
            arguments["context"] = context
        if self.config is not None:
            arguments["config"] = injected["config"]
        return self.function(**arguments)


def read_function(function: Body, *, role: str, offered: Sequence[str]) -> UserFunction:
    """Read the parameters of a user's function; raises ConfigurationError naming one that nobody can fill."""
    name = getattr(function, "__name__", repr(function))
    _check_kind(function, role=role, name=name)
    config: type[Any] | None = None
    resources: dict[str, Any] = {}
    given: set[str] = set()
    takes_context = False
    for parameter in inspect.signature(function).parameters.values():
        annotation = parameter.annotation
        if isinstance(annotation, str):
            raise ConfigurationError(
                f"The annotations of {role} function {name!r} are strings: Dagster reads them at run time. Write them "
                "without quotes, and remove `from __future__ import annotations` from its module.",
                field=role,
            )
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigurationError(
                f"{role} function {name!r} takes {parameter}; name each parameter, so that Dagster can fill it.",
                field=role,
            )
        if parameter.name in ("context", "_context"):
            takes_context = True
        elif parameter.name in offered:
            given.add(parameter.name)
        elif parameter.name == "config":
            config = _config_class(annotation, role=role, name=name)
        elif _is_resource(annotation):
            _check_resource_name(parameter.name, annotation, role=role, name=name)
            resources[parameter.name] = annotation
        else:
            raise ConfigurationError(
                f"Parameter {parameter.name!r} of {role} function {name!r} is neither context, config, "
                f"{', '.join(offered)}, nor annotated with a resource class. Dagster would not know how to fill it.",
                field=role,
            )
    return UserFunction(
        function=function, given=frozenset(given), takes_context=takes_context, config=config, resources=resources
    )


def make_op(
    body: Callable[[dg.OpExecutionContext, Mapping[str, Any]], Any],
    *,
    name: str,
    inputs: Mapping[str, type],
    resources: Mapping[str, Any],
    config: type[Any] | None = None,
    out: dg.Out,
    **options: Any,  # noqa: ANN401 - passed to dagster.op as they are
) -> dg.OpDefinition:
    """Make an op whose parameters are computed: Dagster reads them from the signature that is put together here."""

    def compute(context: dg.OpExecutionContext, **given: object) -> Any:  # noqa: ANN401 - whatever the body returns
        return body(context, given)

    kinds: dict[str, Any] = {**inputs, **({"config": config} if config is not None else {}), **resources}
    parameters = [
        inspect.Parameter(each, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
        for each, kind in kinds.items()
    ]
    first = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=dg.OpExecutionContext)
    compute.__signature__ = inspect.Signature([first, *parameters])  # pyright: ignore[reportFunctionMemberAccess]
    compute.__annotations__ = {"context": dg.OpExecutionContext, **kinds}
    compute.__name__ = name
    return dg.op(name=name, out=out, **options)(compute)


def _check_kind(function: Body, *, role: str, name: str) -> None:
    """Refuse what is called but does not return its result: nobody would ever run or read it."""
    if not callable(function) or isinstance(function, dg.OpDefinition | dg.GraphDefinition | dg.AssetsDefinition):
        raise ConfigurationError(
            f"{role} is {function!r}, expected a plain function: it becomes the body of an op here.", field=role
        )
    called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004 - a callable object
    for kind, found in (
        ("a generator", inspect.isgeneratorfunction),
        ("async", inspect.iscoroutinefunction),
        ("an async generator", inspect.isasyncgenfunction),
    ):
        if found(function) or found(called):
            raise ConfigurationError(
                f"{role} function {name!r} is {kind}. Expected a function that returns its result: its lease and its "
                "paid calls end when it returns.",
                field=role,
            )


def _config_class(annotation: object, *, role: str, name: str) -> type[Any]:
    if isinstance(annotation, type) and issubclass(annotation, dg.Config):
        return annotation
    raise ConfigurationError(
        f"Parameter 'config' of {role} function {name!r} is annotated with {annotation!r}, expected a subclass of "
        "dagster.Config.",
        field=role,
    )


def _check_resource_name(parameter: str, annotation: object, *, role: str, name: str) -> None:
    if parameter in RESERVED and annotation is not RESERVED[parameter]:
        raise ConfigurationError(
            f"Parameter {parameter!r} of {role} function {name!r} is a resource; that name is taken by the library's "
            "own ops. Give the resource another name.",
            field=role,
        )


def _is_resource(annotation: object) -> bool:
    if isinstance(annotation, type):
        return issubclass(annotation, dg.ConfigurableResource | dg.ResourceDefinition)
    # dg.ResourceParam[...] is an Annotated type with this metadata; other Annotated types are not resources.
    return getattr(annotation, "__metadata__", None) == RESOURCE_PARAM
