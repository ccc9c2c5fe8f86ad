"""The OpenAPI description: served, valid, committed and current."""

from pathlib import Path

import yaml
from django.test import Client
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiYamlRenderer
from drf_spectacular.validation import validate_schema

from tests.api.test_walls import CALLS

COMMITTED = Path(__file__).resolve().parents[2] / "docs" / "openapi.yaml"


def generated() -> str:
    schema = SchemaGenerator().get_schema(request=None, public=True)
    return OpenApiYamlRenderer().render(schema, renderer_context={}).decode()


def test_the_committed_description_is_current():
    assert COMMITTED.read_text() == generated(), (
        "run: python manage.py spectacular --file docs/openapi.yaml"
    )


def test_the_description_is_valid_openapi_3_1():
    schema = yaml.safe_load(generated())

    validate_schema(schema)
    assert schema["openapi"].startswith("3.1")


def test_every_call_is_described_with_a_name_and_the_shape_of_refusals():
    schema = yaml.safe_load(generated())
    described = {
        (method.upper(), path): operation
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
        if path.startswith("/api/v1/")
    }

    assert len(described) == len(CALLS)
    for operation in described.values():
        assert operation["operationId"]
        assert operation["summary"]
        assert "4XX" in operation["responses"]
        assert operation["security"] == [{"token": []}]
    names = [operation["operationId"] for operation in described.values()]
    assert len(names) == len(set(names))


def test_the_description_is_served_without_a_token(db: None):
    response = Client().get("/api/v1/schema/")

    assert response.status_code == 200
    assert yaml.safe_load(response.content)["info"]["title"] == "Corral API"
