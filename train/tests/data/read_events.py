"""Reads the event file in `events/` with both readers of TensorBoard, and prints what they see.

    pip install tensorboard==2.21.0 'setuptools<81' pillow
    python read_events.py > events.txt

The readers are the data providers behind TensorBoard's own pages: that of Python, and the fast
server in Rust, which TensorBoard starts by default. Both must see the same. `events.txt` has the
output for the bytes in the repository, which a test of `train/src/log/events.rs` compares with
those that the library writes.
"""

import io
import os
import sys
import time

import numpy as np
from PIL import Image
from tensorboard.compat.proto import graph_pb2
from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.context import RequestContext
from tensorboard.data import server_ingester
from tensorboard.plugins.histogram import summary_v2
from tensorboard.util import grpc_util

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "events")
CTX = RequestContext()
RUN = "."


def python_provider():
    multiplexer = plugin_event_multiplexer.EventMultiplexer(tensor_size_guidance={"scalars": 0})
    multiplexer.AddRunsFromDirectory(FOLDER)
    multiplexer.Reload()
    return data_provider.MultiplexerDataProvider(multiplexer, FOLDER)


def rust_provider():
    ingester = server_ingester.SubprocessServerDataIngester(
        server_ingester.get_server_binary(), FOLDER, reload_interval=1,
        channel_creds_type=grpc_util.ChannelCredsType.LOCAL,
    )
    ingester.start()
    for _ in range(100):
        if ingester.data_provider.list_runs(CTX, experiment_id=""):
            break
        time.sleep(0.1)
    return ingester.data_provider


def read(provider):
    """Returns lines about all values that the provider has."""
    out = []
    at = {"experiment_id": ""}

    def tags(listing):
        return sorted(listing.get(RUN, {}))

    scalars = provider.list_scalars(CTX, plugin_name="scalars", **at)
    values = provider.read_scalars(CTX, plugin_name="scalars", downsample=1000, **at)
    for tag in tags(scalars):
        points = ", ".join(f"{x.step}: {x.value:.9g}" for x in values[RUN][tag])
        out.append(f"scalar {tag}: {points}, at {values[RUN][tag][0].wall_time}")

    histograms = provider.list_tensors(CTX, plugin_name="histograms", **at)
    values = provider.read_tensors(CTX, plugin_name="histograms", downsample=1000, **at)
    for tag in tags(histograms):
        for x in values[RUN][tag]:
            out.append(f"histogram {tag}, step {x.step}: {x.numpy.dtype} {list(x.numpy.shape)}")
            out.extend(f"  {a:.9g} to {b:.9g}: {n:g}" for a, b, n in x.numpy if n)

    texts = provider.list_tensors(CTX, plugin_name="text", **at)
    values = provider.read_tensors(CTX, plugin_name="text", downsample=1000, **at)
    for tag in tags(texts):
        out.extend(f"text {tag}, step {x.step}: {x.numpy.item().decode()}" for x in values[RUN][tag])

    images = provider.list_blob_sequences(CTX, plugin_name="images", **at)
    values = provider.read_blob_sequences(CTX, plugin_name="images", downsample=1000, **at)
    for tag in tags(images):
        for x in values[RUN][tag]:
            blobs = [provider.read_blob(CTX, blob_key=blob.blob_key) for blob in x.values]
            width, height, *pictures = blobs
            out.append(f"images {tag}, step {x.step}: width {width.decode()}, height {height.decode()}")
            for picture in pictures:
                decoded = Image.open(io.BytesIO(picture))
                out.append(f"  {decoded.mode}: {np.asarray(decoded).tolist()}")

    graphs = provider.read_blob_sequences(CTX, plugin_name="graphs", downsample=1000, **at)
    for tag in tags(graphs):
        blob = provider.read_blob(CTX, blob_key=graphs[RUN][tag][-1].values[0].blob_key)
        graph = graph_pb2.GraphDef.FromString(blob)
        out.append(f"graph {tag}")
        for node in graph.node:
            shapes = node.attr["_output_shapes"].list.shape
            shapes = [[dim.size for dim in shape.dim] for shape in shapes]
            out.append(f"  {node.name} = {node.op}({', '.join(node.input)}) {shapes}")
    return out


def main():
    seen, seen_fast = read(python_provider()), read(rust_provider())
    if seen != seen_fast:
        sys.exit("the readers differ:\n" + "\n".join(seen) + "\n\n" + "\n".join(seen_fast))
    # The histogram is the one that TensorBoard's own function makes.
    values = (np.arange(100) ** 2).astype(np.float32) / np.float32(100)
    own = summary_v2.histogram_pb("weights", values).value[0].tensor
    own = np.array(own.double_val or np.frombuffer(own.tensor_content)).reshape(-1, 3)
    seen.append("histogram weights, by TensorBoard")
    seen.extend(f"  {a:.9g} to {b:.9g}: {n:g}" for a, b, n in own if n)
    print("\n".join(seen))


main()
