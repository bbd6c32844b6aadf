"""What the nodes of a graph keep in a plain run, each value once."""

from keras.src.remat.chain import Value
from keras.src.remat.profile_trace import size_of
from keras.src.remat.units import ordered_nodes


class Kept:
    """What the nodes of a graph keep, each value once, at its producer.

    Args:
        function: The `Function`.
        nodes: List of `Node`, in order; of all its nodes or of some.
        costs: List of their `NodeCost`.
    """

    def __init__(self, function, nodes, costs):
        self.function, self.nodes, self.costs = function, nodes, costs
        self.shares = {}  # Id of a tensor: id of the one whose memory it is.
        self.made = {}  # Id of a tensor: its producer, its bytes.
        self.sizes = {}
        self.saved = set()
        for i, (node, cost) in enumerate(zip(nodes, costs)):
            self.add(i, node, cost)
        self.beyond = self.beyond_residuals()

    def add(self, i, node, cost):
        for x, alias, size in zip(
            node.outputs, cost.aliases, cost.output_bytes
        ):
            self.sizes[id(x)] = size
            if alias is None:
                self.made[id(x)] = (i, size)
            else:
                self.shares[id(x)] = self.root(node.input_tensors[alias])
        self.saved.update(
            self.root(node.input_tensors[k]) for k in cost.saves_inputs
        )
        self.saved.update(
            self.root(node.outputs[k]) for k in cost.saves_outputs
        )

    def root(self, x):
        return self.shares.get(id(x), id(x))

    def size(self, x):
        return self.sizes.get(id(x), 0)

    def by_node(self):
        """Bytes of residuals that each node adds."""
        saved = [cost.saved_internal for cost in self.costs]
        for key in self.saved:
            if key in self.made:
                producer, size = self.made[key]
                saved[producer] += size
        return saved

    def beyond_residuals(self):
        """Bytes that the engine holds with the residuals of each node.

        What the engine makes of a product again makes the product a residual.
        """
        products = {
            id(node.outputs[k]): has_bias
            for node, cost in zip(self.nodes, self.costs)
            for k, has_bias in cost.products.items()
        }
        found = []
        for node, cost in zip(self.nodes, self.costs):
            beyond = cost.beyond
            for k, count in cost.remade.items():
                x = node.input_tensors[k]
                if id(x) in products:
                    self.saved.add(self.root(x))
                    beyond -= count
            for k in cost.sums_inputs:  # Kept a second time, without its bias.
                x = node.input_tensors[k]
                if products.get(id(x)):
                    products[id(x)] = False
                    beyond += self.sizes[id(x)]
            found.append(beyond)
        return found

    def grads(self):
        """Bytes of weight gradients that each node's backward adds.

        Those of a weight that several nodes share appear with the last one,
        whose backward comes first.
        """
        seen, found = set(), []
        for node, cost in zip(reversed(self.nodes), reversed(self.costs)):
            variables = getattr(node.operation, "trainable_variables", ())
            new = [v for v in variables if id(v) not in seen]
            seen.update(id(v) for v in new)
            found.append(sum(size_of(v) for v in new) if variables else 0)
        return found[::-1]

    def values(self):
        """List of the planner's `Value`s."""
        n, uses = len(self.nodes), {key: set() for key in self.made}
        place = {id(node): i for i, node in enumerate(self.nodes)}
        for node in ordered_nodes(self.function):
            self.use(uses, node.input_tensors, place.get(id(node), n))
        self.use(uses, self.function.outputs, n)
        return [
            Value(producer, size, sorted(uses[key]), key in self.saved)
            for key, (producer, size) in self.made.items()
            if uses[key]
        ]

    def use(self, uses, tensors, node):
        for x in tensors:
            if self.root(x) in uses:
                uses[self.root(x)].add(node)
