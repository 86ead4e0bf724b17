from dualpath_jax.transfer import transfer_pb2 as _transfer_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NixlStep(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NIXL_STEP_ASK: _ClassVar[NixlStep]
    NIXL_STEP_ASK_AGAIN: _ClassVar[NixlStep]
    NIXL_STEP_OVER: _ClassVar[NixlStep]
    NIXL_STEP_GIVEN_UP: _ClassVar[NixlStep]
NIXL_STEP_ASK: NixlStep
NIXL_STEP_ASK_AGAIN: NixlStep
NIXL_STEP_OVER: NixlStep
NIXL_STEP_GIVEN_UP: NixlStep

class NixlRequests(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[NixlRequest]
    def __init__(self, requests: _Optional[_Iterable[_Union[NixlRequest, _Mapping]]] = ...) -> None: ...

class NixlAnswers(_message.Message):
    __slots__ = ("answers",)
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[NixlAnswer]
    def __init__(self, answers: _Optional[_Iterable[_Union[NixlAnswer, _Mapping]]] = ...) -> None: ...

class NixlRequest(_message.Message):
    __slots__ = ("batch", "step", "pieces", "lane")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    batch: int
    step: NixlStep
    pieces: _transfer_pb2.Pieces
    lane: int
    def __init__(self, batch: _Optional[int] = ..., step: _Optional[_Union[NixlStep, str]] = ..., pieces: _Optional[_Union[_transfer_pb2.Pieces, _Mapping]] = ..., lane: _Optional[int] = ...) -> None: ...

class NixlAnswer(_message.Message):
    __slots__ = ("batch", "refusal", "address", "agent", "metadata")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    batch: int
    refusal: str
    address: _containers.RepeatedScalarFieldContainer[int]
    agent: str
    metadata: bytes
    def __init__(self, batch: _Optional[int] = ..., refusal: _Optional[str] = ..., address: _Optional[_Iterable[int]] = ..., agent: _Optional[str] = ..., metadata: _Optional[bytes] = ...) -> None: ...
