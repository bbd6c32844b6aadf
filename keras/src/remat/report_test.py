import os
import sys
from unittest import mock

import pytest

from keras.src import layers
from keras.src import models
from keras.src import testing
from keras.src.remat import planner
from keras.src.remat import report
from keras.src.utils import io_utils

BATCH = 64


def block_model(blocks=3, width=16):
    inputs = x = layers.Input((width,))
    for i in range(blocks):
        y = layers.Dense(4 * width, activation="gelu", name=f"up_{i}")(x)
        y = layers.Dropout(0.1, name=f"drop_{i}")(y)
        y = layers.Dense(width, name=f"down_{i}")(y)
        x = layers.Add(name=f"add_{i}")([x, y])
        x = layers.BatchNormalization(name=f"norm_{i}")(x)
    model = models.Model(inputs, layers.Dense(2, name="head")(x))
    model.compile("sgd", "mse", metrics=["mae"])
    return model


def printed(function, *args, **kwargs):
    lines = []
    with mock.patch.object(
        io_utils, "is_interactive_logging_enabled", lambda: False
    ):
        with mock.patch.object(
            io_utils, "print_msg", lambda text, **kwargs: lines.append(text)
        ):
            function(*args, **kwargs)
    return "\n".join(lines)


@pytest.mark.requires_trainable_backend
class ShownPlanTest(testing.TestCase):
    def test_table_has_regions_and_totals(self):
        plan = block_model().remat_plan(BATCH, memory_budget=0.8)
        text = printed(plan.summary)
        for word in ("Region", "Kept", "Runs again", "budget", "planned"):
            self.assertIn(word, text)

    def test_a_narrow_table_breaks_no_names(self):
        plan = block_model().remat_plan(BATCH, memory_budget=0.8)
        for layer in plan.model.layers:
            layer.name = f"long_name_of_{layer.name}"
        columns = {"80": False, "140": True}
        for width, all_columns in columns.items():
            with mock.patch.dict(os.environ, COLUMNS=width):
                text = printed(plan.summary)
            for s in plan.segments:
                self.assertIn(plan.nodes[s.start].operation.name, text)
            self.assertEqual("Share of peak" in text, all_columns)

    def test_table_names_what_was_not_traced(self):
        plan = block_model().remat_plan(BATCH)
        plan.unprofiled.append("odd_one")
        self.assertIn("odd_one", printed(plan.summary))

    def test_kept_bytes_agree_with_the_memory_model(self):
        plan = block_model().remat_plan(BATCH, memory_budget=0.8)
        segments = plan.planned.segments
        kept = report.kept_by_node(plan.chain, segments)
        last, before = list(plan.chain.kept_before(segments))[-1]
        # What an engine holds beyond them is no residual.
        chain = plan.chain
        beyond = chain.held_before - chain.saved_before
        held = sum(
            beyond[s.stop] - beyond[s.start]
            for s in segments[:-1]
            if not s.remat
        )
        self.assertEqual(kept[: last.start].sum(), before - held)

    def test_picture_is_written_without_pyplot(self):
        pytest.importorskip("matplotlib")
        plan = block_model().remat_plan(BATCH, memory_budget=0.8)
        path = os.path.join(self.get_temp_dir(), "plan.png")
        had_pyplot = "matplotlib.pyplot" in sys.modules
        self.assertEqual(plan.plot(path), path)
        self.assertGreater(os.path.getsize(path), 10_000)
        self.assertEqual("matplotlib.pyplot" in sys.modules, had_pyplot)

    def test_the_tradeoff_is_that_of_budgets(self):
        model = block_model()
        plan = model.remat_plan(BATCH)
        within = model.remat_plan(BATCH, memory_budget=0.8)
        curves = [planner.tradeoff(p.budget_chain) for p in (plan, within)]
        points = [[(peak, cost) for peak, cost, _ in c] for c in curves]
        self.assertEqual(*points)
        self.assertLess(within.predicted_extra_flops, points[0][0][1])

    def test_picture_without_matplotlib_names_the_way_out(self):
        plan = block_model(1).remat_plan(BATCH)
        hidden = {
            "matplotlib.figure": None,
            "matplotlib.backends.backend_agg": None,
        }
        with mock.patch.dict(sys.modules, hidden):
            with self.assertRaisesRegex(ImportError, "pip install"):
                plan.plot("never.png")
