"""Queue addresses: every documented form, and what a wrong one says without giving anything away."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flowcatalyst.core.errors import ConfigurationError
from flowcatalyst.queues.address import (
    FORMS,
    AmqpAddress,
    EmbeddedAddress,
    NatsAddress,
    PostgresAddress,
    SqsAddress,
    parse_queue_uri,
    shown_uri,
)

PASSWORD = "Pl4nted-Passw0rd"


def sqs(uri: str) -> SqsAddress:
    address = parse_queue_uri(uri)
    assert isinstance(address, SqsAddress)
    return address


def nats(uri: str) -> NatsAddress:
    address = parse_queue_uri(uri)
    assert isinstance(address, NatsAddress)
    return address


def amqp(uri: str) -> AmqpAddress:
    address = parse_queue_uri(uri)
    assert isinstance(address, AmqpAddress)
    return address


def refusal(uri: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        parse_queue_uri(uri)
    said = str(caught.value)
    assert "\n" not in said
    assert caught.value.__context__ is None or caught.value.__suppress_context__, "a traceback would show more"
    scheme = uri.partition(":")[0].lower()
    forms = [form for form in FORMS if form.startswith(f"{scheme}:")]
    assert [form for form in FORMS if form in said] == (forms or list(FORMS)), "the form that was meant and no other"
    return said


KINDS_OF_FORMS = [
    EmbeddedAddress,
    *[SqsAddress] * 3,
    *[NatsAddress] * 2,
    *[AmqpAddress] * 2,
    *[PostgresAddress] * 2,
]


@pytest.mark.parametrize(
    ("form", "kind"),
    list(zip(FORMS, KINDS_OF_FORMS, strict=True)),
)
def test_every_form_that_errors_name_can_be_used(form: str, kind: type) -> None:
    uri = form.replace("REGION", "eu-west-1").replace("PORT", "4000").replace("ACCOUNT", "123456789012")
    assert isinstance(parse_queue_uri(uri), kind)


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("embedded:orders", "orders"),
        ("embedded://orders", "orders"),
        ("EMBEDDED:orders", "orders"),
        ("embedded:my orders", "my orders"),
    ],
)
def test_an_embedded_queue_is_named_after_the_colon(uri: str, name: str) -> None:
    assert parse_queue_uri(uri) == EmbeddedAddress(name)


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("sqs.us-east-1.amazonaws.com", "us-east-1"),
        ("sqs.ap-southeast-12.amazonaws.com", "ap-southeast-12"),
        ("sqs.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("sqs.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("eu-central-1.queue.amazonaws.com", "eu-central-1"),
        ("cn-northwest-1.queue.amazonaws.com.cn", "cn-northwest-1"),
        ("queue.amazonaws.com", "us-east-1"),
        ("sqs-fips.us-west-2.amazonaws.com", "us-west-2"),
        ("sqs-fips.us-west-2.api.aws", "us-west-2"),
        ("sqs.eu-west-3.api.aws", "eu-west-3"),
        ("vpce-0a1b2c3d-4e5f.sqs.eu-west-1.vpce.amazonaws.com", "eu-west-1"),
        ("vpce-0a1b2c3d-4e5f-eu-west-1a.sqs.eu-west-1.vpce.amazonaws.com", "eu-west-1"),
        ("sqs.eusc-de-east-1.amazonaws.eu", "eusc-de-east-1"),
    ],
)
def test_the_hosts_of_amazon_name_the_region_and_are_no_endpoint_of_their_own(host: str, region: str) -> None:
    url = f"https://{host}/123456789012/orders.fifo"
    assert sqs(url) == SqsAddress("orders.fifo", queue_url=url, region=region)
    assert sqs(url.upper().replace("ORDERS.FIFO", "orders.fifo")).region == region


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("sqs.us-west-2.localhost.localstack.cloud:4566", "us-west-2"),
        ("us-west-2.queue.localhost.localstack.cloud:4566", "us-west-2"),
        ("localhost:9324", None),
        ("[::1]:9324", None),
        ("sqs.example.org", None),
        ("not-amazonaws.com", None),
        ("sqs.us-east-1.amazonaws.com.evil.test", "us-east-1"),
    ],
)
def test_any_other_host_of_a_queue_url_is_the_one_to_call(host: str, region: str | None) -> None:
    for scheme in ("http", "https"):
        address = sqs(f"{scheme}://{host}/123456789012/orders")
        assert (address.region, address.endpoint) == (region, f"{scheme}://{host}")
        assert address.queue_url == f"{scheme}://{host}/123456789012/orders"


def test_options_of_a_queue_url_are_no_part_of_it() -> None:
    address = sqs("https://sqs.us-east-1.amazonaws.com//1/q/?region=eu-west-1&create=true")
    assert (address.queue_url, address.region, address.create) == (
        "https://sqs.us-east-1.amazonaws.com/1/q",
        "eu-west-1",
        True,
    )


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("sqs://orders", SqsAddress("orders")),
        ("sqs://Orders.fifo/", SqsAddress("Orders.fifo")),
        ("sqs://orders?region=eu-west-1", SqsAddress("orders", region="eu-west-1")),
        ("SQS://orders?create=TRUE&region=us-gov-east-1", SqsAddress("orders", region="us-gov-east-1", create=True)),
        ("sqs://orders?create=false", SqsAddress("orders")),
        ("sqs://orders?region=ru-central1", SqsAddress("orders", region="ru-central1")),
    ],
)
def test_an_sqs_queue_may_be_given_by_its_name(uri: str, expected: SqsAddress) -> None:
    assert parse_queue_uri(uri) == expected


def test_a_name_that_ends_in_fifo_is_a_fifo_queue() -> None:
    assert sqs("sqs://orders.fifo").fifo
    assert not sqs("sqs://fifo").fifo
    assert sqs("sqs://" + "q" * 75 + ".fifo").fifo


@pytest.mark.parametrize(
    ("authority", "servers"),
    [
        ("broker", ("nats://broker:4222",)),
        ("broker:", ("nats://broker:4222",)),
        ("broker:5000", ("nats://broker:5000",)),
        ("10.0.0.7:65535", ("nats://10.0.0.7:65535",)),
        ("[::1]", ("nats://[::1]:4222",)),
        ("[2001:DB8::7]:5000", ("nats://[2001:db8::7]:5000",)),
        ("a:1,b,c:3", ("nats://a:1", "nats://b:4222", "nats://c:3")),
        ("a:1,[::1]:2,[::2]", ("nats://a:1", "nats://[::1]:2", "nats://[::2]:4222")),
        ("bücher.example", ("nats://bücher.example:4222",)),
        ("nats_1.internal", ("nats://nats_1.internal:4222",)),
    ],
)
def test_nats_servers_are_one_or_more_hosts_with_or_without_port(authority: str, servers: tuple[str, ...]) -> None:
    assert nats(f"nats://{authority}/ORDERS?consumer=router").servers == servers


def test_a_nats_address_has_a_stream_a_consumer_and_options() -> None:
    assert nats("nats://h/ORDERS?consumer=router") == NatsAddress(("nats://h:4222",), "ORDERS", "router")
    assert nats(
        "nats://h/ORDERS?consumer=router&subject=orders.>&groupHeader=X-Group&groupToken=2&create=true"
    ) == NatsAddress(("nats://h:4222",), "ORDERS", "router", "orders.>", "X-Group", 2, create=True)
    assert nats("nats://h/S?consumer=c&groupToken=all").group_token == 0
    assert nats("tls://h/S?consumer=c").servers == ("tls://h:4222",)
    assert nats("NATS://H/S?consumer=c").servers == ("nats://h:4222",)


@pytest.mark.parametrize("subject", ["orders", "orders.new", "orders.*.done", "orders.>", ">", "orders.%C3%BCber"])
def test_a_subject_may_have_wildcards_where_nats_allows_them(subject: str) -> None:
    assert nats(f"nats://h/S?consumer=c&subject={subject}").subject


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("amqp://h/orders", AmqpAddress((("h", 5672),), "orders")),
        ("amqp://h:1/orders", AmqpAddress((("h", 1),), "orders")),
        ("amqps://h/orders", AmqpAddress((("h", 5671),), "orders", tls=True)),
        ("AMQPS://h/orders", AmqpAddress((("h", 5671),), "orders", tls=True)),
        ("amqp://[::1]/orders", AmqpAddress((("::1", 5672),), "orders")),
        ("amqp://a,b:2/orders", AmqpAddress((("a", 5672), ("b", 2)), "orders")),
        ("amqp://h/my.orders%20of%20today%40home", AmqpAddress((("h", 5672),), "my.orders of today@home")),
    ],
)
def test_an_amqp_address_has_hosts_and_a_queue(uri: str, expected: AmqpAddress) -> None:
    assert parse_queue_uri(uri) == expected


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("postgresql://h/shop?queue=orders", PostgresAddress((("h", 5432),), "shop", "orders")),
        ("postgres://h:1/shop?queue=orders", PostgresAddress((("h", 1),), "shop", "orders")),
        ("postgresql://a,b:2/shop?queue=q", PostgresAddress((("a", 5432), ("b", 2)), "shop", "q")),
        ("postgresql://[::1]/my%20shop?queue=new%20orders", PostgresAddress((("::1", 5432),), "my shop", "new orders")),
        (
            "postgresql://h/shop?queue=q&schema=mine_2&sslmode=verify-full",
            PostgresAddress((("h", 5432),), "shop", "q", "mine_2", "verify-full"),
        ),
    ],
)
def test_a_postgres_address_has_hosts_a_database_and_a_queue(uri: str, expected: PostgresAddress) -> None:
    assert parse_queue_uri(uri) == expected


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("", "no known scheme"),
        ("orders", "no known scheme"),
        ("redis://h/q", "no known scheme"),
        ("kafka:q", "no known scheme"),
        (" embedded:q", "no known scheme"),
        ("embedded:", "has no queue name"),
        ("embedded://", "has no queue name"),
        ("embedded:  ", "has no queue name"),
        ("embedded:a\nb", "control character"),
        ("nats://h/S ?consumer=c", "contains a space"),
        ("nats://h/S?consumer=c\n", "contains a space"),
        ("nats://h/S?consumer=c#x", "has a fragment"),
        ("nats:S", "no // after its scheme"),
        ("sqs:orders", "no // after its scheme"),
        # SQS
        ("https://sqs.us-east-1.amazonaws.com", "ends in /ACCOUNT/QUEUE"),
        ("https://sqs.us-east-1.amazonaws.com/orders", "ends in /ACCOUNT/QUEUE"),
        ("https://sqs.us-east-1.amazonaws.com/1/or.ders", "ends in /ACCOUNT/QUEUE"),
        ("https:///1/orders", "has no host"),
        ("https://h:x/1/orders", "invalid port"),
        ("https://h/1/q?regoin=eu-west-1", "has the option regoin, but a queue of this kind takes create, region"),
        ("sqs://", "has an invalid SQS queue name"),
        ("sqs://or.ders", "has an invalid SQS queue name"),
        ("sqs://" + "q" * 81, "has an invalid SQS queue name"),
        ("sqs://" + "q" * 76 + ".fifo", "has an invalid SQS queue name"),
        ("sqs://orders/more", "has a path"),
        ("sqs://orders?region=", "the option region without a value or twice"),
        ("sqs://orders?region=a.test/", "the option region with a value that is not a region"),
        ("sqs://orders?create=yes", "the option create with a value that is not true or false"),
        # NATS
        ("nats://h/S", "has no consumer: add ?consumer=NAME"),
        ("nats://h/S?consumer=", "the option consumer without a value or twice"),
        ("nats://h/S?consumer=a&consumer=b", "the option consumer without a value or twice"),
        ("nats://h/S?consumer=a.b", "the option consumer with a value that is not made of letters"),
        ("nats://h/?consumer=c", "has no stream name: it ends in /STREAM"),
        ("nats://h?consumer=c", "has no stream"),
        ("nats://h/S/T?consumer=c", "has no stream"),
        ("nats://h/S.T?consumer=c", "has an invalid stream name"),
        ("nats:///S?consumer=c", "has no host"),
        ("nats://a,,b/S?consumer=c", "has no host"),
        ("nats://:4222/S?consumer=c", "has an invalid host"),
        ("nats://h:0/S?consumer=c", "invalid port"),
        ("nats://h:65536/S?consumer=c", "invalid port"),
        ("nats://h:\uff14\uff12/S?consumer=c", "invalid port"),
        ("nats://[::1/S?consumer=c", "has an invalid host"),
        ("nats://[::g]/S?consumer=c", "has an invalid host"),
        ("nats://[1.2.3.4]/S?consumer=c", "has an invalid host"),
        ("nats://::1/S?consumer=c", "has an invalid host"),
        ("nats://h/S?consumer=c&groupToken=0", "the option groupToken with a value that is not the number"),
        ("nats://h/S?consumer=c&groupToken=" + "9" * 5000, "groupToken with a value that is not the number"),
        ("nats://h/S?consumer=c&subject=a..b", "the option subject with a value that is not a subject"),
        ("nats://h/S?consumer=c&subject=a.>.b", "the option subject with a value that is not a subject"),
        ("nats://h/S?consumer=c&subject=a%0d%0aPUB", "the option subject with a value that is not a subject"),
        ("nats://h/S?consumer=c&subject=a+b", "the option subject with a value that is not a subject"),
        ("nats://h/S?consumer=c&groupHeader=a%3Ab", "the option groupHeader with a value that is not the name"),
        # AMQP
        ("postgresql://h/shop", "has no queue: add ?queue=NAME"),
        ("postgresql://h/shop?queue=%20q", "has the option queue with a value that is not a name"),
        ("postgresql://h?queue=q", "has no database name: it ends in /DATABASE"),
        ("postgresql:///shop?queue=q", "has no host"),
        (
            "postgres://h/shop?queue=q&schema=Mine",
            "has the option schema with a value that is not made of small letters",
        ),
        (
            "postgres://h/shop?queue=q&schema=x;--",
            "has the option schema with a value that is not made of small letters",
        ),
        (
            "postgresql://h/shop?queue=q&sslmode=yes",
            "has the option sslmode with a value that is not one of PostgreSQL's",
        ),
        ("postgresql://h/shop?queue=q&user=ann", "has the option user, but a queue of this kind takes"),
        ("amqp://h", "has no queue name: it ends in /QUEUE"),
        ("amqp://h/", "has no queue name: it ends in /QUEUE"),
        ("amqp://h/a/b", "has no queue name"),
        ("amqp://h/a%2Fb", "has no queue name"),
        ("amqp://h/%20", "has an invalid queue name: it ends in a space"),
        ("amqp://h/a%00", "undecodable characters"),
        ("amqp://h/%ff", "undecodable characters"),
        ("amqp://h/q?durable=true", "has the option durable, but a queue of this kind takes none"),
    ],
)
def test_a_wrong_address_says_what_is_wrong_and_which_forms_there_are(uri: str, said: str) -> None:
    assert said in refusal(uri)


WITH_CREDENTIALS = [
    f"nats://user:{PASSWORD}@h/S?consumer=c",
    f"nats://{PASSWORD}@h/S?consumer=c",
    f"nats://h,user:{PASSWORD}@h/S?consumer=c",
    f"tls://user:{PASSWORD}@h/S",
    f"amqp://user:{PASSWORD}@h/q",
    f"postgresql://user:{PASSWORD}@h/shop?queue=q",
    f"postgresql://h/shop?queue=q&password={PASSWORD}",
    f"amqps://user:{PASSWORD}@[::1]:9/q",
    f"https://key:{PASSWORD}@sqs.us-east-1.amazonaws.com/1/q",
    f"sqs://key:{PASSWORD}@q",
    # A password that breaks the URI apart:
    f"amqp://user:/{PASSWORD}@h/q",
    f"amqp://user:12/{PASSWORD}@h",
    f"amqp://user:?{PASSWORD}@h/q",
    f"amqp://user:#{PASSWORD}@h/q",
    f"amqp://user:[{PASSWORD}]@h/q",
    f"amqp://user:℀{PASSWORD}@h/q",
    f"nats://user:{PASSWORD} @h/S?consumer=c",
    f"nats://user:{PASSWORD}%40h/S?consumer=c",
    f"nats://user%3A{PASSWORD}%40h/S?consumer=c",
    # In places where a name or a value was expected:
    f"amqp://h/q?{PASSWORD}",
    f"amqp://h/q?{PASSWORD}%40=x",
    f"amqp://h/q?password={PASSWORD}",
    f"nats://h/S?consumer=c&create={PASSWORD}",
    f"nats://h:{PASSWORD}/S?consumer=c",
    f"nats://[{PASSWORD}]/S?consumer=c",
    f"redis://user:{PASSWORD}@h/0",
    f"{PASSWORD}://h/q",
    f"user:{PASSWORD}@h",
]


@pytest.mark.parametrize("uri", WITH_CREDENTIALS)
def test_credentials_in_an_address_are_refused_and_never_repeated(uri: str) -> None:
    assert PASSWORD not in refusal(uri)


def test_credentials_are_told_where_to_go() -> None:
    assert "put them into the settings or the environment" in refusal(WITH_CREDENTIALS[0])


@pytest.mark.parametrize(
    "uri", [*WITH_CREDENTIALS[:1], f"nats://user:a/{PASSWORD}?b#@h/S", f"amqp://{PASSWORD}@h,x@i/q"]
)
def test_what_stands_before_an_at_sign_is_not_shown(uri: str) -> None:
    shown = shown_uri(uri)
    assert PASSWORD not in shown
    assert shown.startswith(f"{uri.partition('://')[0]}://***@")


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("nats://h:4222/S?consumer=router&create=true", "nats://h:4222/S?consumer=router&create=true"),
        ("nats://h/S?consumer=c&groupToken=2&groupHeader=Key", "nats://h/S?consumer=c&groupToken=2&groupHeader=Key"),
        ("nats://h/S?consumer=c&token=x", "nats://h/S?consumer=c&token=***"),
        ("nats://h/S?consumer=c;token=x", "nats://h/S?consumer=***"),
        ("nats://h/S?groupToken=s3cret", "nats://h/S?groupToken=***"),
        ("https://h/1/q?X-Amz-Signature=x&region=eu-west-1", "https://h/1/q?X-Amz-Signature=***&region=eu-west-1"),
        ("sqs://q?accessKeyId=x&Pass%77ord=x&secret=x", "sqs://q?accessKeyId=***&Pass%77ord=***&secret=***"),
        ("sqs://q?x&region=eu-west-1#x", "sqs://q?***&region=eu-west-1"),
        ("embedded:high", "embedded:high"),
        ("embedded:a@b", "embedded:a@b"),
    ],
)
def test_an_address_is_shown_without_what_may_be_a_secret_and_with_everything_else(uri: str, shown: str) -> None:
    assert shown_uri(uri) == shown


SCHEMES = st.sampled_from(["nats", "tls", "amqp", "amqps", "http", "https", "sqs", "NATS", "redis", ""])
PIECES = st.text(alphabet="aé0.:/?#[]@%&=,-_ \t\n\\4℀", max_size=12) | st.text(max_size=8)


@given(SCHEMES, PIECES, PIECES, PIECES)
@example("amqp", "user:[", "]@h", "q")
def test_text_with_a_password_in_front_of_an_at_sign_is_refused_in_one_line_without_it(
    scheme: str, before: str, after: str, end: str
) -> None:
    uri = f"{scheme}://{before}{PASSWORD}{after}@{end}"
    assert PASSWORD not in refusal(uri)


@given(st.text() | st.builds("{}:{}{}".format, SCHEMES, PIECES, PIECES) | st.from_regex(re.compile(r"nats://.*\?.*")))
def test_any_text_is_an_address_or_refused_in_one_line(uri: str) -> None:
    said = ""
    try:
        parse_queue_uri(uri)
    except ConfigurationError as error:
        said = str(error)
    assert said.isprintable()
    assert not said or said.startswith("its queueUri ")
