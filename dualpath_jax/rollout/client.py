"""A client of a cluster: sessions that generate, from synchronous code or from asyncio, many at once."""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Self, TypeVar, final

from dualpath_jax.rollout.generation import Generation, generation, token_choice
from dualpath_jax.rollout.request import GenerateCall
from dualpath_scheduler.service import InvalidRequest, SchedulerClient
from dualpath_scheduler.service import scheduler_pb2 as pb

T = TypeVar("T")

RECONNECT_S = 10.0


@final
class Client:
    """A connection to the scheduler at `address` (`host:port`), with an event loop on a thread of its own.

    A context manager. Safe to use from several threads and event loops at once. Closing it ends what is running with
    RuntimeError, as does using it afterwards.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dualpath-client", daemon=True)
        self._thread.start()
        self._submitting = threading.Lock()
        self._closed = False
        self._ended: set[asyncio.Task[object]] = set()
        self._scheduler = self._wait(self._connect())

    async def _connect(self) -> SchedulerClient:
        return SchedulerClient(self.address)

    def session(self, *, tenant_salt: str = "") -> "Session":
        """A new session. Sessions with different salts share no KV."""
        return Session(self, tenant_salt)

    def describe(self) -> pb.DescribeReply:
        """Limits of the cluster and its living nodes. Raises SchedulerUnavailable."""
        return self._wait(self._scheduler.describe())

    def wait_ready(self, prefill_nodes: int, decode_nodes: int, *, deadline_s: float) -> pb.DescribeReply:
        """Wait until so many nodes live. Raises SchedulerUnavailable, saying what is there, at the deadline."""
        return self._wait(self._scheduler.wait_ready(prefill_nodes, decode_nodes, deadline_s=deadline_s))

    def close(self) -> None:
        """End what is running and stop the thread. Safe to call twice."""
        with self._submitting:
            if self._closed:
                return
            self._closed = True
        # Nothing is submitted after this, so nothing waits for a loop that has stopped.
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        running = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        self._ended = {task for task in running if not task.cancelling()}
        for task in self._ended:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._scheduler.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _wait(self, work: Coroutine[object, object, T]) -> T:
        """Run on the client's loop; an interrupted wait cancels the work."""
        future = self._submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def _hand(self, work: Coroutine[object, object, T]) -> T:
        """The same, awaited from another loop."""
        return await asyncio.wrap_future(self._submit(work))

    def _submit(self, work: Coroutine[object, object, T]) -> "Future[T]":
        with self._submitting:
            if not self._closed:
                return asyncio.run_coroutine_threadsafe(self._until_closed(work), self._loop)
        work.close()
        raise self._is_closed()

    async def _until_closed(self, work: Coroutine[object, object, T]) -> T:
        """To whoever waits, the end of the client is an error and not a cancellation of its own task."""
        try:
            return await work
        except asyncio.CancelledError:
            if asyncio.current_task() in self._ended:
                raise self._is_closed() from None
            raise

    def _is_closed(self) -> RuntimeError:
        return RuntimeError(f"the client of the scheduler at {self.address} is closed: open another one")

    async def _generate(self, call: GenerateCall) -> Generation:
        choices = []
        finished = pb.Finished()
        async for event in self._scheduler.generate(await self._message(call), reconnect_s=RECONNECT_S):
            choices += [token_choice(token) for token in event.tokens]
            if event.HasField("finished"):
                finished = event.finished
        return generation(choices, finished)

    async def _message(self, call: GenerateCall) -> pb.GenerateRequest:
        try:
            return call.message()
        except ValueError as error:
            limits = await self._scheduler.describe()
            raise InvalidRequest(
                f"{error} (vocab_size {limits.vocab_size}, max_context_tokens {limits.max_context_tokens})"
            ) from None


@final
class Session:
    """A conversation: each turn's prompt is everything before it, generations included, and the turn's new tokens.

    One turn at a time; sessions are independent of each other. A turn that fails leaves the history as it was.
    """

    def __init__(self, client: Client, tenant_salt: str) -> None:
        self._client = client
        self._tenant_salt = tenant_salt
        self._history: list[int] = []
        self._busy = threading.Lock()

    @property
    def history(self) -> tuple[int, ...]:
        """All tokens so far."""
        return tuple(self._history)

    def generate(
        self,
        tokens: Sequence[int],
        max_tokens: int,
        *,
        temperature: float = 0.0,
        seed: int = 0,
        stop_tokens: Sequence[int] = (),
        forced_tokens: Sequence[int] | None = None,
    ) -> Generation:
        """Append `tokens` and generate up to `max_tokens` more, fewer where one of `stop_tokens` comes.

        Temperature 0 is greedy; the draw at a position depends on `seed` and the position. `forced_tokens` (exactly
        `max_tokens`) are taken as the generation, and their log-probabilities and the greedy choices are returned.

        Raises InvalidRequest (with the value and the limits), RequestFailed (naming the node where one is to blame),
        SchedulerUnavailable, RuntimeError where another turn of this session is running or the client is closed.
        """
        with self._turn():
            call = self._call(tokens, max_tokens, temperature, seed, stop_tokens, forced_tokens)
            return self._append(call, self._client._wait(self._client._generate(call)))

    async def generate_async(
        self,
        tokens: Sequence[int],
        max_tokens: int,
        *,
        temperature: float = 0.0,
        seed: int = 0,
        stop_tokens: Sequence[int] = (),
        forced_tokens: Sequence[int] | None = None,
    ) -> Generation:
        """`generate`, awaited; cancelling it cancels the request."""
        with self._turn():
            call = self._call(tokens, max_tokens, temperature, seed, stop_tokens, forced_tokens)
            return self._append(call, await self._client._hand(self._client._generate(call)))

    def _call(
        self,
        tokens: Sequence[int],
        max_tokens: int,
        temperature: float,
        seed: int,
        stop_tokens: Sequence[int],
        forced_tokens: Sequence[int] | None,
    ) -> GenerateCall:
        prompt = [*self._history, *tokens]
        return GenerateCall(prompt, max_tokens, temperature, seed, stop_tokens, forced_tokens, self._tenant_salt)

    def _turn(self) -> "_Turn":
        return _Turn(self._busy)

    def _append(self, call: GenerateCall, result: Generation) -> Generation:
        self._history = [*map(int, call.tokens), *result.tokens]
        return result


@final
class _Turn:
    """Holds a session for one turn."""

    def __init__(self, busy: threading.Lock) -> None:
        self._busy = busy

    def __enter__(self) -> None:
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("a turn of this session is running: wait for it, or open another session")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._busy.release()
