from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_WRITTEN: _ClassVar[Outcome]
    OUTCOME_REFUSED: _ClassVar[Outcome]
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_WRITTEN: Outcome
OUTCOME_REFUSED: Outcome

class Frame(_message.Message):
    __slots__ = ("batch", "pieces", "cancel", "lane")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    batch: int
    pieces: Pieces
    cancel: bool
    lane: int
    def __init__(self, batch: _Optional[int] = ..., pieces: _Optional[_Union[Pieces, _Mapping]] = ..., cancel: _Optional[bool] = ..., lane: _Optional[int] = ...) -> None: ...

class Pieces(_message.Message):
    __slots__ = ("region_id", "generation", "region", "offset_bytes", "size_bytes")
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    region_id: _containers.RepeatedScalarFieldContainer[int]
    generation: _containers.RepeatedScalarFieldContainer[int]
    region: _containers.RepeatedScalarFieldContainer[int]
    offset_bytes: _containers.RepeatedScalarFieldContainer[int]
    size_bytes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, region_id: _Optional[_Iterable[int]] = ..., generation: _Optional[_Iterable[int]] = ..., region: _Optional[_Iterable[int]] = ..., offset_bytes: _Optional[_Iterable[int]] = ..., size_bytes: _Optional[_Iterable[int]] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("batch", "outcome", "detail", "consumed_bytes")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_BYTES_FIELD_NUMBER: _ClassVar[int]
    batch: int
    outcome: Outcome
    detail: str
    consumed_bytes: int
    def __init__(self, batch: _Optional[int] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., detail: _Optional[str] = ..., consumed_bytes: _Optional[int] = ...) -> None: ...
