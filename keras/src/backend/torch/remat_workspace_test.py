import pytest
from absl.testing import parameterized

from keras.src import backend
from keras.src import testing

pytestmark = pytest.mark.skipif(
    backend.backend() != "torch", reason="asks operations of torch"
)


def has_other_blocks():
    if backend.backend() != "torch":
        return False
    import torch

    return torch.backends.cpu.get_cpu_capability() != "AVX512"


@pytest.mark.skipif(has_other_blocks(), reason="measured where AVX512 is")
class WorkspaceTest(testing.TestCase):
    """Predicted memory of a convolution's gradient, beside the allocator's."""

    @parameterized.named_parameters(
        ("dense", (64, 64, 1), 3, 16, 1, True),
        ("strided", (64, 96, 1), 3, 16, 2, True),
        ("not_whole_blocks", (24, 40, 1), 3, 8, 1, True),
        ("depthwise", (96, 96, 96), 3, 8, 1, True),
        ("depthwise_small_image", (96, 96, 96), 3, 2, 1, True),
        ("depthwise_strided_small_image", (96, 96, 96), 3, 3, 2, True),
        ("depthwise_large_kernel", (96, 96, 96), 5, 8, 1, True),
        ("depth_multiplier", (32, 64, 32), 3, 8, 1, True),
        ("groups", (32, 32, 4), 3, 8, 1, True),
        ("channels_first", (64, 64, 1), 3, 16, 1, False),
    )
    def test_is_what_the_allocator_counts(
        self, channels, size, length, stride, channels_last
    ):
        into, out, groups = channels
        args = arguments(into, out, groups, size, length, stride, channels_last)
        predicted = workspace_of(args)
        measured = measured_workspace(args)
        self.assertGreater(predicted, 0.9 * measured - 2**15)
        self.assertLess(predicted, 1.1 * measured + 2**15)

    def test_is_nothing_where_the_kernel_is_frozen(self):
        args = arguments(8, 8, 1, 3, 8, 1, True)
        self.assertEqual(workspace_of([*args[:-1], [True, False, False]]), 0)


def arguments(into, out, groups, size, length, stride, channels_last):
    """What `aten.convolution_backward` is called with, kernel as in Keras."""
    import torch

    x = torch.randn(8, into, length, length)
    kernel = torch.randn(size, size, into // groups, out).permute(3, 2, 0, 1)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    padding = [size // 2] * 2
    y = torch.conv2d(x, kernel, None, stride, padding, 1, groups)
    gradient = torch.randn(y.shape)
    if channels_last:
        gradient = gradient.contiguous(memory_format=torch.channels_last)
    wanted = [True, True, False]
    place = [[stride] * 2, padding, [1, 1], False, [0, 0], groups, wanted]
    return [gradient, x, kernel, None, *place]


def workspace_of(args):
    import torch

    from keras.src.backend.torch.remat_workspace import workspace

    return workspace(torch.ops.aten.convolution_backward.default, args)


def measured_workspace(args):
    import torch

    from keras.src.backend.torch.remat_measure import highest

    def run():
        return torch.ops.aten.convolution_backward(*args)

    run()  # Caches that the first use of an operation fills.
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as prof:
        results = run()
    made = sum(x.nbytes for x in results if x is not None)
    return highest(prof.profiler.kineto_results.events()) - made
