import os
from unittest import mock

import numpy as np
import pytest

from keras.src import layers
from keras.src import models
from keras.src import testing
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.backend.common.remat_test_utils import ChainModel
from keras.src.remat.budget import show
from keras.src.remat.columns import summary_columns
from keras.src.remat.report_test import BATCH
from keras.src.remat.report_test import block_model


@pytest.mark.requires_trainable_backend
class SummaryColumnsTest(testing.TestCase):
    def test_off_shows_kept_bytes_but_no_region(self):
        columns = summary_columns(block_model())
        self.assertEqual(columns.header, ("Kept (batch 1)", "Region"))
        self.assertNotEqual(columns.rows["up_0"][0], "0 B")
        self.assertEqual({r for _, r in columns.rows.values()}, {"-"})
        self.assertEqual(columns.rows["no such layer"], ("-", "-"))

    def test_on_shows_regions(self):
        model = block_model()
        model.remat = True
        columns = summary_columns(model, batch_size=BATCH)
        self.assertEqual(columns.header[0], f"Kept (batch {BATCH})")
        self.assertEqual(columns.rows["up_0"][1], "1")

    def test_budget_too_small_for_the_batch_is_said(self):
        model = block_model()
        model.remat = RematPolicy(memory_budget=16)
        columns = summary_columns(model)
        self.assertIn("none fits", columns.header[1])

    def test_model_summary_has_the_columns(self):
        model = block_model()
        model.remat = True
        lines = []
        with mock.patch.dict(os.environ, COLUMNS="160"):
            model.summary(print_fn=lines.append, show_remat=True)
        text = "\n".join(lines)
        self.assertIn("Kept", text)
        self.assertIn("Region", text)
        self.assertIn("Peak of a step", text)
        lines.clear()
        model.summary(print_fn=lines.append)
        self.assertNotIn("Region", "\n".join(lines))

    def test_model_that_is_no_graph_has_none(self):
        class Own(models.Model):
            def call(self, x):
                return x

        self.assertEqual(summary_columns(Own()).rows["a"], ("-", "-"))

    def test_regions_of_a_model_that_is_no_graph(self):
        parts = [layers.Dense(4, name=f"part_{k}") for k in range(4)]
        model = ChainModel(*parts)
        parts[1].remat = False
        parts[3].remat = True

        def regions():
            rows = summary_columns(model).rows
            return [rows[part.name][1] for part in parts]

        self.assertEqual(regions(), ["-", "-", "-", "1"])
        model.remat = True
        self.assertEqual(regions(), ["1", "-", "2", "3"])
        self.assertIn("Functional", summary_columns(model).total)

    def test_the_batch_that_last_ran(self):
        model = block_model()
        budget = int(0.8 * model.remat_plan(BATCH).plain_bytes)
        model.remat = RematPolicy(memory_budget=budget)
        before = summary_columns(model)
        self.assertEqual(before.header[0], "Kept (batch 1)")
        self.assertIn("if it had a batch of 1", before.total)
        x, y = np.ones((BATCH, 16)), np.ones((BATCH, 2))
        model.fit(x, y, batch_size=BATCH, verbose=0)
        after = summary_columns(model)
        self.assertEqual(after.header[0], f"Kept (batch {BATCH})")
        self.assertNotEqual({r for _, r in after.rows.values()}, {"-"})
        plan = model.remat_plan(BATCH)
        self.assertIn(f"{show(plan.plain_bytes)} plain", after.total)
        self.assertIn(f"{show(plan.predicted_bytes)} planned", after.total)
