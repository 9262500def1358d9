"""The owner of the schema: it owns every object, whichever role installs, and no other role has a right on one."""

from collections.abc import Callable, Iterator
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from airflow_provider_taskq.queue import TaskQueue, TaskQueueError, connect, install, verify
from tests.internals import SCHEMAS, pretend_release

pytestmark = pytest.mark.promise("The owner of the schema owns every object, whichever role installs")

Login = Callable[..., psycopg.Connection]

OWNERS = """
    SELECT DISTINCT o.kind, o.owner::regrole::text FROM (
        SELECT 'schema' AS kind, nspowner AS owner, oid AS namespace FROM pg_namespace
        UNION ALL SELECT 'function', proowner, pronamespace FROM pg_proc
        UNION ALL SELECT 'relation', relowner, relnamespace FROM pg_class
        UNION ALL SELECT 'type', typowner, typnamespace FROM pg_type) o
    WHERE o.namespace = ANY (%s::regnamespace[]) ORDER BY 1, 2"""


@pytest.fixture
def admin(empty_dsn: str) -> Iterator[psycopg.Connection]:
    """A superuser in a database without the schema, in autocommit."""
    with connect(empty_dsn, autocommit=True) as conn:
        yield conn


@pytest.fixture
def login(admin: psycopg.Connection, empty_dsn: str) -> Iterator[Login]:
    """Opens a session of a new role, which may create schemas in this database and is a member of `roles`."""
    made: list[psycopg.Connection] = []

    def login(*roles: str) -> psycopg.Connection:
        name = f"taskq_installs_{uuid4().hex[:8]}"
        role = sql.Identifier(name)
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'plain'").format(role))
        database = sql.Identifier(admin.info.dbname)
        admin.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(database, role))
        for other in roles:
            admin.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(other), role))
        made.append(connect(make_conninfo(empty_dsn, user=name, password="plain"), autocommit=True))
        return made[-1]

    yield login
    names = [sql.Identifier(conn.info.user) for conn in made]
    for conn in made:
        conn.close()
    for name in names:
        admin.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(name))
    for name in names:
        admin.execute(sql.SQL("DROP ROLE {}").format(name))


RIGHTS = """
    WITH objects (name, namespace, owner, acl) AS (
        SELECT nspname, oid, nspowner, nspacl FROM pg_namespace
        UNION ALL SELECT oid::regprocedure::text, pronamespace, proowner, coalesce(proacl, acldefault('f', proowner))
        FROM pg_proc
        UNION ALL SELECT relname, relnamespace, relowner, relacl FROM pg_class
        UNION ALL SELECT c.relname || '.' || a.attname, c.relnamespace, c.relowner, a.attacl
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid)
    SELECT o.name, CASE x.grantee WHEN 0 THEN 'PUBLIC' ELSE x.grantee::regrole::text END, x.privilege_type
    FROM objects o CROSS JOIN LATERAL aclexplode(o.acl) x
    WHERE o.namespace = ANY (%s::regnamespace[]) AND x.grantee <> o.owner
    ORDER BY 1, 2, 3"""


def rights(conn: psycopg.Connection) -> list[tuple[str, str, str]]:
    """The rights of others than the owner."""
    return conn.execute(RIGHTS, (SCHEMAS,)).fetchall()


DEFAULTS = ("FUNCTIONS", "TABLES", "SEQUENCES", "TYPES", "SCHEMAS")


def open_defaults(owner: psycopg.Connection, grantee: str) -> None:
    """Grant all rights on each object that the role of a session creates from now on."""
    for kind in DEFAULTS:
        owner.execute(f"ALTER DEFAULT PRIVILEGES GRANT ALL ON {kind} TO {grantee} WITH GRANT OPTION".encode())


def make_older(admin: psycopg.Connection) -> None:
    """Let the next installation replace all functions and views."""
    pretend_release(admin, "other functions")
    pretend_release(admin, "other views")


def owners(admin: psycopg.Connection) -> set[str]:
    return {owner for _, owner in admin.execute(OWNERS, (SCHEMAS,)).fetchall()}


@pytest.mark.parametrize("installer", ["superuser", "superuser in a transaction", "member of the owner"])
def test_an_upgrade_by_a_superuser_leaves_every_object_with_the_owner_of_the_schema(
    admin: psycopg.Connection, empty_dsn: str, login: Login, installer: str
) -> None:
    """So does one by a member of the owner."""
    owner = login()
    install(owner)
    make_older(admin)
    dsn = empty_dsn
    if installer == "member of the owner":
        dsn = make_conninfo(empty_dsn, user=login(owner.info.user).info.user, password="plain")
    with connect(dsn, autocommit=installer != "superuser in a transaction") as conn:
        for views in (False, True):
            before = conn.execute("SELECT current_user, current_setting('role')").fetchone()
            install(conn, views=views)
            assert conn.execute("SELECT current_user, current_setting('role')").fetchone() == before
            conn.commit()
            assert owners(admin) == {owner.info.user}
    TaskQueue(owner).create_topic("work")
    verify(owner)


def test_a_role_that_is_no_member_of_the_owner_cannot_upgrade(admin: psycopg.Connection, login: Login) -> None:
    owner = login()
    install(owner)
    make_older(admin)
    with pytest.raises(TaskQueueError, match=f"belongs to role {owner.info.user}: run this as that role"):
        install(login())
    assert owners(admin) == {owner.info.user}


@pytest.mark.parametrize("schemas", [SCHEMAS[:1], SCHEMAS[1:], SCHEMAS])
@pytest.mark.parametrize("installer", ["superuser", "plain role"])
def test_the_first_installation_does_not_use_a_schema_of_another_role(
    admin: psycopg.Connection, login: Login, schemas: list[str], installer: str
) -> None:
    """The owner of a schema can replace what is in it, and create functions that run with more rights."""
    stranger = login()
    for schema in schemas:
        stranger.execute(f"CREATE SCHEMA {schema}".encode())
    conn = admin if installer == "superuser" else login()
    with pytest.raises(TaskQueueError, match=f"schema {schemas[0]} belongs to role {stranger.info.user}"):
        install(conn)
    assert admin.execute("SELECT to_regclass('taskq.migrations')").fetchone() == (None,)


def test_a_schema_that_was_created_for_the_installer_is_used(admin: psycopg.Connection, login: Login) -> None:
    owner = login()
    for schema in SCHEMAS:
        admin.execute(
            sql.SQL("CREATE SCHEMA {} AUTHORIZATION {}").format(sql.Identifier(schema), sql.Identifier(owner.info.user))
        )
    install(login(owner.info.user))
    assert owners(admin) == {owner.info.user}


def test_schemas_of_two_roles_are_refused(admin: psycopg.Connection, login: Login) -> None:
    owner = login()
    install(owner)
    other = sql.Identifier(login().info.user)
    admin.execute(sql.SQL("ALTER SCHEMA taskq OWNER TO {}").format(other))
    make_older(admin)
    with pytest.raises(TaskQueueError, match="belong to different roles"):
        install(admin)


def test_default_privileges_of_the_installing_role_open_nothing(admin: psycopg.Connection, login: Login) -> None:
    owner, stranger = login(), login()
    open_defaults(owner, stranger.info.user)
    install(owner)
    TaskQueue(owner).create_topic("work", own_tables=True)
    assert rights(admin) == []
    make_older(admin)
    install(owner, views=False)
    install(owner, views=True)
    assert rights(admin) == []


def test_an_upgrade_takes_back_every_right_that_was_not_granted_by_grant_access(
    admin: psycopg.Connection, login: Login
) -> None:
    owner, reader, producer, stranger = login(), login(), login(), login()
    install(owner)
    TaskQueue(owner).create_topic("work")
    owner.execute("SELECT taskq.grant_access(%s, 'reader')", (reader.info.user,))
    owner.execute("SELECT taskq.grant_access(%s, 'producer', '{work}')", (producer.info.user,))
    granted = rights(admin)
    for kind in ("ALL FUNCTIONS IN ", "ALL TABLES IN ", "ALL SEQUENCES IN ", ""):
        for role in (stranger.info.user, reader.info.user):
            owner.execute(f"GRANT ALL ON {kind}SCHEMA {', '.join(SCHEMAS)} TO {role} WITH GRANT OPTION".encode())
    owner.execute(f"GRANT UPDATE (stage) ON taskq.staged TO {stranger.info.user}, PUBLIC".encode())
    stranger.execute("GRANT SELECT ON taskq.staged TO PUBLIC")
    make_older(admin)
    install(owner)
    assert rights(admin) == granted
    TaskQueue(producer).push("work", ["a"])
    assert len(TaskQueue(reader).page("work")) == 1


def test_an_upgrade_leaves_rights_on_objects_of_others_alone(admin: psycopg.Connection, login: Login) -> None:
    owner, stranger = login(), login()
    install(owner)
    owner.execute("CREATE TABLE taskq.mine (id int)")
    owner.execute(f"GRANT SELECT ON taskq.mine TO {stranger.info.user}".encode())
    make_older(admin)
    install(owner)
    assert rights(admin) == [("mine", stranger.info.user, "SELECT")]


def test_the_owner_keeps_its_rights_when_access_is_granted_to_it_and_revoked(
    admin: psycopg.Connection, login: Login
) -> None:
    owner = login()
    install(owner)
    owner.execute("SELECT taskq.grant_access(%s, 'reader')", (owner.info.user,))
    owner.execute("SELECT taskq.revoke_access(%s)", (owner.info.user,))
    make_older(admin)
    install(owner)
    TaskQueue(owner).create_topic("work")
