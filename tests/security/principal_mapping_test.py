"""Rules for names of certificates: the scenarios of Apache Kafka's SslPrincipalMapperTest, and hostile names.

Zone: pure.
"""

from __future__ import annotations

import pytest

from ottla.security.principal_mapping import NoMatchingRule, PrincipalMapper

RULES = (
    r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L,"
    r" RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    r" RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U, RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [
        (RULES, "CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        (RULES, "CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        (RULES, "cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        (RULES, "cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        (RULES, "OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
        (r"RULE:^CN=((\\, *|\w)+)(,.*|$)/$1/,DEFAULT", r"CN=Tkac\, Adam,OU=ITZ,DC=geodis,DC=cz", r"Tkac\, Adam"),
        ("DEFAULT", "CN=x", "CN=x"),
        ("DEFAULT", "", ""),
        ("RULE://,DEFAULT", "", ""),
        # The matches are replaced, not the name: a pattern without anchors may match several times.
        ("RULE:.*/x/", "abc", "xx"),
        ("RULE:CN=(.*?)/<$1>/", "CN=a", "<>a"),
        ("RULE:(a)|(b)/[$1$2]/", "a", "[a]"),
        # References.
        ("RULE:(.)(.)/$2$1$0$3$12/", "ab", "baab$3a2"),
        (r"RULE:(.)/\$1\/\\/", "a", "$1/\\"),
        ("RULE:^(.*)$/$1/U", "straße", "STRASSE"),
        # Splitting.
        ("  RULE:([A-Z]*)/$1/U   ,RULE:([a-z]+)/$1/,   DEFAULT  ", "abc", "abc"),
        (",   , , RULE:a/b/ ,,,DEFAULT,,", "c", "c"),
        (r"RULE:\**\/+/*/L,RULE:\/*\**/**/", "**//", "*"),
        ("RULE:,RULE:,/,RULE:,\\//U", ",RULE:,", ",RULE:,/"),
        ("RULE:^CN=([^,ADEFLTU,]+)(,.*|$)/$1/", "CN=x,O=y", "x"),
    ],
)
def test_rules(rules: str, name: str, principal: str) -> None:
    assert PrincipalMapper(rules).map_name(name) == principal


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "DEFAULTX",
        "DEFAULT DEFAULT",
        "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
        "rule:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/LU",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/L",
        "RULE:a/b/L c",
        "RULE:(/x/",
        "RULE:(?=a)/x/",
        r"RULE:(a)\1/x/",
        "RULE:a/$1/",
        "RULE:(a)/$/",
        "RULE:(a)/$x/",
        "RULE:(a)/${name}/",
        "DEFAULT,RULE:(/x/",
    ],
)
def test_rules_that_are_refused(rules: str) -> None:
    with pytest.raises(ValueError, match=r"Invalid rule|the pattern|the replacement"):
        PrincipalMapper(rules)


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ("", "CN=x"),
        (" , ,", "CN=x"),
        ("RULE:^CN=a$/x/", "CN=ab"),
        ("RULE:^CN=a$/x/", "O=z,CN=a"),
        ("RULE:^CN=.*$/x/", "CN=a\nb"),
        ("DEFAULT", "CN=" + "x" * 5_000),
        ("RULE:(((a?)*)*)*b/x/", "a" * 4_000),
    ],
)
def test_names_without_a_principal(rules: str, name: str) -> None:
    with pytest.raises(NoMatchingRule) as failure:
        PrincipalMapper(rules).map_name(name)
    assert len(str(failure.value)) < 300


def test_a_name_cannot_add_a_line_or_another_component() -> None:
    """255 components, and values with escaped commas: the pattern sees one text."""
    mapper = PrincipalMapper(r"RULE:^CN=([^,]*),.*$/$1/")
    assert mapper.map_name("CN=a," + ",".join(f"OU={number}" for number in range(255))) == "a"
    with pytest.raises(NoMatchingRule):
        mapper.map_name("OU=CN=boss,CN=a")
