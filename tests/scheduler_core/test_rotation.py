"""How long a group stays where it is alone: the closed form of a round in which everybody keeps pace."""

from __future__ import annotations

import pytest

from aegaeon_scheduler.core.config import PolicySettings
from aegaeon_scheduler.core.policies.slack.rotation import Crowd

FREE = PolicySettings(lone_margin=1.0, lone_stay_least=0.0, lone_stay_most=1e9)


@pytest.mark.parametrize("utils", [[0.3], [0.2, 0.3, 0.1], [0.1] * 9])
def test_a_round_of_such_stays_gives_each_its_share_of_the_round(utils):
    crowd, change_s = Crowd.over(utils, 1), 0.7
    stays = [crowd.stay_s(util, change_s, FREE) for util in utils]
    round_s = sum(stays) + change_s * len(utils)
    assert [stay / round_s for stay in stays] == pytest.approx(utils)


def test_engines_share_the_crowd():
    assert Crowd.over([0.2] * 6, 3) == Crowd(2.0, pytest.approx(0.4))


@pytest.mark.parametrize("util", [0.99999, 1.0, 1.7])
def test_where_no_round_keeps_all_in_time_changes_are_few(util):
    settings = PolicySettings()
    assert Crowd(2.0, util).stay_s(0.5, 0.7, settings) == settings.lone_stay_most * 0.7


def test_a_stay_is_never_shorter_than_what_its_change_is_worth():
    settings = PolicySettings()
    assert Crowd(1.0, 0.01).stay_s(0.01, 0.7, settings) == settings.lone_stay_least * 0.7
