"""The OpenAPI document: valid, readable, complete, and true to the tables that it shows."""

import re

import jsonschema
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from app.domain.lifecycle import EventType, FailureCategory, Outcome, Phase, RunnerKind, Status
from app.main import create_app
from docs import generate

SPEC = create_app(generate.unconnected(generate.example_settings())).openapi()
SCHEMAS = SPEC["components"]["schemas"]
OPERATIONS = {
    operation["operationId"]: (method, path, operation)
    for path, operations in SPEC["paths"].items()
    for method, operation in operations.items()
}


def test_the_document_is_valid_openapi_3_1():
    assert SPEC["openapi"].startswith("3.1")
    assert [error.message for error in OpenAPIV31SpecValidator(SPEC).iter_errors()] == []


def test_operation_ids_read_as_a_thing_and_a_verb():
    assert len(OPERATIONS) == sum(len(operations) for operations in SPEC["paths"].values())
    for name in OPERATIONS:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)+", name), name


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_says_what_it_and_its_parameters_are_for(name):
    _, _, operation = OPERATIONS[name]

    undescribed = [p["name"] for p in operation.get("parameters", []) if "description" not in p]
    assert operation["description"].endswith(".")
    assert operation["tags"]
    assert not undescribed


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_and_each_of_its_properties_has_a_description(name):
    schema = SCHEMAS[name]
    missing = [p for p, value in schema.get("properties", {}).items() if not value["description"]]

    assert schema["description"]
    assert not missing


@pytest.mark.parametrize("name", OPERATIONS)
def test_everything_but_health_needs_an_identity_and_refuses_with_a_problem(name):
    _, path, operation = OPERATIONS[name]

    if "health" in operation["tags"]:
        assert "security" not in operation
        return
    [requirement] = operation["security"]
    assert set(requirement) <= set(SPEC["components"]["securitySchemes"])
    assert {"401", "403", "503"} <= set(operation["responses"])
    if path.startswith("/v1"):
        refusal = operation["responses"]["409"]["content"]["application/problem+json"]
        assert refusal["schema"] == {"$ref": "#/components/schemas/Problem"}


def _bodies():
    for name, (_, _, operation) in OPERATIONS.items():
        for content in operation.get("requestBody", {}).get("content", {}).values():
            if "example" in content:
                yield pytest.param(content["schema"], content["example"], id=name)


@pytest.mark.parametrize(("schema", "example"), list(_bodies()))
def test_the_example_of_a_body_is_valid_by_its_schema(schema, example):
    whole = {**schema, "components": SPEC["components"]}

    jsonschema.Draft202012Validator(whole).validate(example)


@pytest.mark.parametrize(
    "enum",
    [Status, EventType, FailureCategory, Outcome, Phase, RunnerKind],
    ids=lambda e: e.__name__,
)
def test_an_enum_is_the_one_of_the_lifecycle(enum):
    assert SCHEMAS[enum.__name__]["enum"] == [str(member) for member in enum]


def test_what_the_path_and_the_headers_give_stands_in_no_body():
    claim, complete = SCHEMAS["ClaimLeases"], SCHEMAS["CompleteLease"]

    assert "runner_id" not in claim["properties"]
    assert not {"lease_id", "lease_token"} & {*complete["properties"], *complete["required"]}
    _, _, operation = OPERATIONS["leases_complete"]
    assert {p["in"] for p in operation["parameters"]} == {"path", "header"}


def test_the_document_is_the_same_every_time():
    again = create_app(generate.unconnected(generate.example_settings())).openapi()

    assert generate.openapi() == generate.openapi()
    assert again == SPEC
