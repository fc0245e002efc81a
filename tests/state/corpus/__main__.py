from tests.state.corpus import make

make()
