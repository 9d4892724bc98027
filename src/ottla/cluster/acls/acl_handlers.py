"""DescribeAcls, CreateAcls, DeleteAcls: requests about access control lists.

Zone: deterministic. Any broker changes ACLs (`acl_store`); a description comes from the ACLs that this broker has.
Without an authorizer the error is SECURITY_DISABLED.

Version notes: 0 has literal patterns only, 1 pattern types (KIP-290), 2 flexible, 3 the resource type USER.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Final, TypeVar

from ottla.acls import (
    AclBinding,
    AclEntry,
    AclFilter,
    EntryFilter,
    Operation,
    PatternType,
    Permission,
    ResourceFilter,
    ResourcePattern,
    ResourceType,
    fault_of_binding,
    fault_of_filter,
)
from ottla.cluster.acls.acl_store import AclsChanged, AclStore, Entries
from ottla.cluster.store.error_mapping import error_of_failure
from ottla.cluster.store.workflow import contain_defects, run_workflow
from ottla.errors import ApiError, ErrorCode
from ottla.fan_in import FanIn
from ottla.requests import Context, InPieces, Parts, Whole, handles
from ottla.seams import Failure, MetadataStore
from ottla.security.audit_log import AuditLog
from ottla.security.authorization.authorizer import Authorizer
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from ottla.znodes.acl_nodes import fault_of_node_name

CHANGES_MAX: Final = 10_000
"""Most ACLs that a request creates or deletes, as in Kafka."""
AT_ONCE: Final = 32
"""Resources whose ACLs a request changes at the same time."""
_PIECE: Final = 250
"""Resources looked at for a piece of a description."""
_Result = CreateAclsResponse.AclCreationResult
_Deleted = DeleteAclsResponse.DeleteAclsFilterResult
_Described = DescribeAclsResponse.DescribeAclsResource
T = TypeVar("T")
_Filter = DescribeAclsRequest | DeleteAclsRequest.DeleteAclsFilter


class AclHandlers:
    """Handles requests about ACLs. The dispatch has checked the permission on the cluster."""

    def __init__(
        self,
        store: MetadataStore,
        acls: AclStore | None,
        authorizer: Authorizer | None,
        audit: AuditLog,
        run_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        """`acls`, `authorizer`: None without an authorizer. `run_soon`: calls a function in a turn of its own."""
        self._store = store
        self._acls = acls
        self._authorizer = authorizer
        self._audit = audit
        self._run_soon = run_soon

    # -- DescribeAcls ------------------------------------------------------------------------------------------------

    @handles(ApiKey.DESCRIBE_ACLS, 0, 3, resource="Cluster", operation="Describe")
    def describe_acls(self, _context: Context, request: DescribeAclsRequest) -> InPieces:
        """Return the ACLs that the filter selects, by resource, in pieces."""
        authorizer = _configured(self._authorizer)
        selected = _filter_of(request)
        fault = fault_of_filter(selected)
        if fault:
            raise ApiError(ErrorCode.INVALID_REQUEST, fault)
        return InPieces(("resources",), _described_pieces(authorizer, selected))

    # -- CreateAcls --------------------------------------------------------------------------------------------------

    @handles(
        ApiKey.CREATE_ACLS,
        0,
        3,
        resource="Cluster",
        operation="Alter",
        parts=Parts(cost_us=50, request=(("creations",),), response=(("results",),)),
    )
    def create_acls(self, context: Context, request: CreateAclsRequest) -> None:
        """Create ACLs, each independently. One that exists is a success."""
        acls, whole = _configured(self._acls), context.whole or Whole()
        gather: FanIn[_Result] = FanIn(lambda results: context.send_reply(CreateAclsResponse(results=results)))
        wanted: dict[ResourcePattern, list[tuple[AclEntry, Callable[[_Result], None]]]] = {}
        for creation in request.creations:
            slot, binding = gather.new_slot(), _binding_of(creation)
            whole.count += 1
            error = _creation_error(binding, whole.count)
            if error is not None:
                slot(_result_of(error))
            else:
                wanted.setdefault(binding.resource, []).append((binding.entry, slot))
        # One change for each resource: several would be in conflict with each other, because all write the same node.
        for resource, added in wanted.items():
            entries = frozenset(entry for entry, _ in added)
            slots = [slot for _, slot in added]
            done = context.wrap_step(partial(self._on_created, context, resource, slots))
            self._change_acls(acls, resource, partial(_with_entries, entries), done)
        gather.close_slots()

    def _on_created(
        self,
        context: Context,
        resource: ResourcePattern,
        slots: Sequence[Callable[[_Result], None]],
        outcome: AclsChanged | ApiError,
    ) -> None:
        if isinstance(outcome, AclsChanged):
            self._log_changes(context, "create", resource, outcome.after - outcome.before)
        for slot in slots:
            slot(_result_of(outcome if isinstance(outcome, ApiError) else None))

    # -- DeleteAcls --------------------------------------------------------------------------------------------------

    @handles(
        ApiKey.DELETE_ACLS,
        0,
        3,
        resource="Cluster",
        operation="Alter",
        parts=Parts(cost_us=500, request=(("filters",),), response=(("filter_results",),)),
    )
    def delete_acls(self, context: Context, request: DeleteAclsRequest) -> None:
        """Delete the ACLs that each filter selects, one filter after the other."""
        _configured(self._acls)
        deletion = _Deletion(self, context, request.filters)
        deletion.start_next()

    def delete_selected(
        self, context: Context, selected: AclFilter, whole: Whole, done: Callable[[_Deleted], None]
    ) -> None:
        """Delete the ACLs that a filter selects."""
        fault = fault_of_filter(selected)
        if fault:
            done(_Deleted(error_code=ErrorCode.INVALID_REQUEST, error_message=fault))
            return
        chosen: list[tuple[ResourcePattern, Entries]] = []
        resources = _configured(self._authorizer).acls.select_resources(selected.resource)

        @context.wrap_step
        def choose_more() -> None:
            """Look at some resources; after the last one, delete."""
            some = list(islice(resources, _PIECE))
            for resource in some:
                entries = self._matching(resource, selected.entry)
                if entries:
                    chosen.append((resource, entries))
                    whole.count += len(entries)
            if whole.count > CHANGES_MAX:
                error = _too_many_error()
                done(_Deleted(error_code=error.code, error_message=error.message))
            elif len(some) == _PIECE:
                self._run_soon(choose_more)
            else:
                self._delete_chosen(context, selected.entry, chosen, _Deleted(error_message=None), done)

        choose_more()

    def _matching(self, resource: ResourcePattern, selected: EntryFilter) -> Entries:
        entries = _configured(self._authorizer).acls.entries_at(resource)
        return frozenset(entry for entry in entries if selected.matches_entry(entry))

    def _delete_chosen(
        self,
        context: Context,
        selected: EntryFilter,
        chosen: Iterable[tuple[ResourcePattern, Entries]],
        result: _Deleted,
        done: Callable[[_Deleted], None],
    ) -> None:
        """Delete from the next resources; then from the others."""
        left = iter(chosen)
        some = list(islice(left, AT_ONCE))
        if not some:
            done(result)
            return

        def on_deleted(outcomes: list[AclsChanged | ApiError]) -> None:
            for (resource, entries), outcome in zip(some, outcomes, strict=True):
                error = outcome if isinstance(outcome, ApiError) else None
                deleted = outcome.before - outcome.after if isinstance(outcome, AclsChanged) else entries
                if error is None:
                    self._log_changes(context, "delete", resource, deleted)
                result.matching_acls += [_deleted_row(resource, entry, error) for entry in sorted(deleted)]
            self._delete_chosen(context, selected, left, result, done)

        gather: FanIn[AclsChanged | ApiError] = FanIn(context.wrap_step(on_deleted))
        for resource, _ in some:
            self._change_acls(_configured(self._acls), resource, partial(_without_entries, selected), gather.new_slot())
        gather.close_slots()

    # -- changes -----------------------------------------------------------------------------------------------------

    def _change_acls(
        self,
        acls: AclStore,
        resource: ResourcePattern,
        edit: Callable[[Entries], Entries],
        done: Callable[[AclsChanged | ApiError], None],
    ) -> None:
        script = contain_defects("the change of ACLs", lambda: acls.change_acls(resource, edit))
        run_workflow(
            self._store,
            script,
            lambda outcome: done(error_of_failure(outcome) if isinstance(outcome, (Failure, ApiError)) else outcome),
        )

    def _log_changes(self, context: Context, operation: str, resource: ResourcePattern, entries: Entries) -> None:
        for entry in sorted(entries):
            self._audit.log_change(context.peer, "acl", operation=operation, acl=AclBinding(resource, entry))


class _Deletion:
    """A DeleteAcls request in progress: its filters one after the other, because they may select the same ACLs."""

    def __init__(
        self, handlers: AclHandlers, context: Context, filters: Sequence[DeleteAclsRequest.DeleteAclsFilter]
    ) -> None:
        self._handlers = handlers
        self._context = context
        self._whole = context.whole or Whole()
        self._left = iter(filters)
        self._results: list[_Deleted] = []

    def start_next(self) -> None:
        """Begin the next filter; respond after the last one."""
        selected = next(self._left, None)
        if selected is None:
            self._context.send_reply(DeleteAclsResponse(filter_results=self._results))
        else:
            self._handlers.delete_selected(self._context, _filter_of(selected), self._whole, self._on_deleted)

    def _on_deleted(self, result: _Deleted) -> None:
        self._results.append(result)
        self.start_next()


def _configured(part: T | None) -> T:
    """The authorizer, or its store. Raises ApiError SECURITY_DISABLED without one."""
    if part is None:
        raise ApiError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    return part


def _filter_of(request: _Filter) -> AclFilter:
    resource = ResourceFilter(
        ResourceType(request.resource_type_filter),
        request.resource_name_filter,
        PatternType(request.pattern_type_filter),
    )
    operation, permission = Operation(request.operation), Permission(request.permission_type)
    return AclFilter(resource, EntryFilter(request.principal_filter, request.host_filter, operation, permission))


def _binding_of(creation: CreateAclsRequest.AclCreation) -> AclBinding:
    pattern_type = PatternType(creation.resource_pattern_type)
    resource = ResourcePattern(ResourceType(creation.resource_type), creation.resource_name, pattern_type)
    operation, permission = Operation(creation.operation), Permission(creation.permission_type)
    return AclBinding(resource, AclEntry(creation.principal, creation.host, operation, permission))


def _creation_error(binding: AclBinding, count: int) -> ApiError | None:
    """Why an ACL cannot be created. count: of those in the request so far."""
    if count > CHANGES_MAX:
        return _too_many_error()
    fault = fault_of_binding(binding) or fault_of_node_name(binding.resource)
    return ApiError(ErrorCode.INVALID_REQUEST, fault) if fault else None


def _too_many_error() -> ApiError:
    return ApiError(ErrorCode.POLICY_VIOLATION, f"a request may create or delete {CHANGES_MAX} ACLs")


def _with_entries(added: Entries, present: Entries) -> Entries:
    return present | added


def _without_entries(selected: EntryFilter, present: Entries) -> Entries:
    return frozenset(entry for entry in present if not selected.matches_entry(entry))


def _result_of(error: ApiError | None) -> _Result:
    if error is None:
        return _Result(error_message=None)
    return _Result(error_code=error.code, error_message=error.message)


def _deleted_row(
    resource: ResourcePattern, entry: AclEntry, error: ApiError | None
) -> DeleteAclsResponse.DeleteAclsMatchingAcl:
    return DeleteAclsResponse.DeleteAclsMatchingAcl(
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.message,
        resource_type=resource.resource_type,
        resource_name=resource.name,
        pattern_type=resource.pattern_type,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission,
    )


def _described_pieces(authorizer: Authorizer, selected: AclFilter) -> Generator[DescribeAclsResponse, None, None]:
    """The response in pieces, at least one. Each looks at some resources, whether they have selected ACLs or not."""
    resources = authorizer.acls.select_resources(selected.resource)
    while some := list(islice(resources, _PIECE)):
        rows = (_described_row(authorizer, resource, selected.entry) for resource in some)
        yield DescribeAclsResponse(error_message=None, resources=[row for row in rows if row.acls])
    yield DescribeAclsResponse(error_message=None)


def _described_row(authorizer: Authorizer, resource: ResourcePattern, selected: EntryFilter) -> _Described:
    entries = sorted(entry for entry in authorizer.acls.entries_at(resource) if selected.matches_entry(entry))
    return _Described(
        resource_type=resource.resource_type,
        resource_name=resource.name,
        pattern_type=resource.pattern_type,
        acls=[
            DescribeAclsResponse.AclDescription(
                principal=entry.principal,
                host=entry.host,
                operation=entry.operation,
                permission_type=entry.permission,
            )
            for entry in entries
        ],
    )
