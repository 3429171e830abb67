"""Matching data to a model's schema: columns in any order, transforms that must be equal, and values that are no schema."""

import json

import numpy as np
import pytest

from sarlite.data import format, from_tables
from sarlite.data.schema import is_schema, matched, schema_of
from sarlite.errors import DataError


def dataset(columns=("age", "income"), transforms=None):
    users = {"user": ["ann", "bob", "cas"], "age": [31.0, 44.0, 27.0], "income": [2.0, 1.0, 3.0], "more": [0.0, 0.0, 1.0]}
    edges = {"file": {"a": ["ann", "bob"], "b": ["bob", "cas"]}, "relation": ["user", "knows", "user"], "src": "a", "dst": "b"}
    data = from_tables({"nodes": {"user": {"file": users, "id": "user", "features": list(columns)}}, "edges": [edges]})
    data.target_nodes.transforms = transforms
    return data


def test_columns_in_the_order_of_the_schema():
    schema = json.loads(json.dumps(schema_of(dataset())))
    assert is_schema(schema) and schema["nodes"] == [["node", ["age", "income"], None]]
    match = matched(dataset(("more", "income", "age")), schema, "NEW")
    assert match.left_out == ["data NEW: features: columns left out, as the model does not take them: 'more'"]
    assert match.dataset.features.shape == (3, 2)
    np.testing.assert_array_equal(match.dataset.features[1:3], [[44, 1], [27, 3]])
    assert schema_of(match.dataset) == schema


def test_transforms_stay_with_the_data_and_must_be_those_of_the_model(tmp_path):
    one = {"columns": {"age": {"transform": "standard", "statistics": {"mean": 30.0, "deviation": 2.0}}}, "on_training_rows": True}
    other = {**one, "columns": {"age": {"transform": "standard", "statistics": {"mean": 35.0, "deviation": 2.0}}}}
    format.write(tmp_path / "d", dataset(transforms=one))
    stored = format.open(tmp_path / "d")
    assert stored.target_nodes.transforms == one
    schema = schema_of(stored)
    assert is_schema(schema) and matched(stored, schema, "NEW").left_out == []
    for transforms, difference in ((other, "column 'age' has .*35.* instead of .*30"), (None, "plain numbers instead of age:standard")):
        with pytest.raises(DataError, match=f"data NEW: .*features: .*other transforms than the model's: {difference}"):
            matched(dataset(transforms=transforms), schema, "NEW")


def test_values_that_are_no_schema():
    good = schema_of(dataset())
    assert is_schema(good)
    nodes = ([["user", ["a"]]], [["user", [1], None]], [["user", True, None]], [["user", None, 3]], {}, None)
    others = [{**good, "target": 3}, {**good, "edges": [[["a", "b"], None, None]]}, *({**good, "nodes": one} for one in nodes)]
    for odd in (None, [], {}, *others):
        assert not is_schema(odd), odd
