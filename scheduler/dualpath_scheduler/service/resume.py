"""Where a generation goes on after an attempt that ended early."""

from collections.abc import Sequence

from dualpath_scheduler.service import scheduler_pb2 as pb


def remaining(message: pb.GenerateRequest, emitted: Sequence[int]) -> pb.GenerateRequest | None:
    """The request for what is still to come after the tokens `emitted`; None where nothing is.

    The emitted tokens become part of the prompt; `max_tokens` and `forced_tokens` shrink by them. Since a draw depends
    on seed and position alone, the rest is what the first attempt would have given.
    """
    if len(emitted) >= message.max_tokens or (emitted and emitted[-1] in message.stop_tokens):
        return None
    rest = pb.GenerateRequest()
    rest.CopyFrom(message)
    rest.tokens.extend(emitted)
    rest.max_tokens -= len(emitted)
    del rest.forced_tokens[: len(emitted)]
    return rest
