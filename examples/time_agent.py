"""Tells what date and time it is, anywhere, in English and Chinese.

    parley serve examples/time_agent.py
    parley send "What time is it in Tokyo?"
    parley send "北京现在几点?"

On Windows it needs the time zones that other systems come with: pip install tzdata
"""

import re
from datetime import datetime
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from parley import Agent, Turn

agent = Agent(
    name="Time agent",
    description="Tells what date and time it is, anywhere, in English and Chinese",
    version="1.0.0",
)

CHINESE = {
    "北京": "Asia/Shanghai", "上海": "Asia/Shanghai", "深圳": "Asia/Shanghai",
    "中国": "Asia/Shanghai", "香港": "Asia/Hong_Kong", "台北": "Asia/Taipei",
    "东京": "Asia/Tokyo", "日本": "Asia/Tokyo", "首尔": "Asia/Seoul", "新加坡": "Asia/Singapore",
    "迪拜": "Asia/Dubai", "莫斯科": "Europe/Moscow", "柏林": "Europe/Berlin",
    "德国": "Europe/Berlin", "巴黎": "Europe/Paris", "法国": "Europe/Paris",
    "伦敦": "Europe/London", "英国": "Europe/London", "纽约": "America/New_York",
    "旧金山": "America/Los_Angeles", "洛杉矶": "America/Los_Angeles", "悉尼": "Australia/Sydney",
}  # fmt: skip
ENGLISH = {
    "beijing": "Asia/Shanghai", "shenzhen": "Asia/Shanghai", "china": "Asia/Shanghai",
    "delhi": "Asia/Kolkata", "mumbai": "Asia/Kolkata", "india": "Asia/Kolkata",
    "munich": "Europe/Berlin", "germany": "Europe/Berlin", "france": "Europe/Paris",
    "england": "Europe/London", "uk": "Europe/London",
    "boston": "America/New_York", "washington": "America/New_York",
    "san francisco": "America/Los_Angeles", "seattle": "America/Los_Angeles",
}  # fmt: skip


@agent.skill(
    tags=["time", "date"],
    examples=["What time is it in Tokyo?", "What date is it in New York?", "北京现在几点?"],
)
async def current_time(turn: Turn) -> str:
    """Tells the date and the time in the city that is asked for, or where the server is."""
    place, zone = find_place(turn.text)
    if place and zone is None:
        return f"I do not know the time zone of {place}. Try a large city near it."
    moment = now(zone)
    chinese = re.search(r"[\u4e00-\u9fff]", turn.text)
    return in_chinese(moment, place) if chinese else in_english(moment, place)


def now(zone: ZoneInfo | None) -> datetime:
    """Return the present moment in a time zone, the server's own when none is given."""
    return datetime.now(zone) if zone else datetime.now().astimezone()


def find_place(text: str) -> tuple[str, ZoneInfo | None]:
    """Return the place that a question names, "" for none, and its time zone if it is known."""
    for place, zone in CHINESE.items():
        if place in text:
            return place, ZoneInfo(zone)
    words = re.findall(r"[\w/'+-]+", text)
    for start, word in enumerate(words):
        if word[0].isupper() or words[start - 1].lower() == "in":
            for end in range(len(words), start, -1):  # "New York" before "York"
                place = " ".join(words[start:end])
                if name := time_zones().get(place.lower()):
                    return place if place[0].isupper() else place.title(), ZoneInfo(name)
    unknown = re.search(r"\bin ((?:the )?[A-Z][\w'-]+)", text)
    return unknown[1] if unknown else "", None


@cache
def time_zones() -> dict[str, str]:
    """Return the time zones by the names of their cities, and by their own."""
    names = {zone.replace("_", " ").lower(): zone for zone in sorted(available_timezones())}
    return {name.rpartition("/")[2]: zone for name, zone in names.items()} | names | ENGLISH


def in_english(moment: datetime, place: str) -> str:
    """Say a moment in English."""
    where = f"In {place} it is" if place else "It is"
    day = f"{moment:%A}, {moment.day} {moment:%B %Y}"
    return f"{where} {moment:%H:%M:%S} on {day} ({offset(moment)})."


def in_chinese(moment: datetime, place: str) -> str:
    """Say a moment in Chinese."""
    day = f"{moment.year}年{moment.month}月{moment.day}日 星期{'一二三四五六日'[moment.weekday()]}"
    return f"{place}现在是{day} {moment:%H:%M:%S}（{offset(moment)}）。"


def offset(moment: datetime) -> str:
    """Return how far a moment's clock is from UTC, such as UTC+09:00."""
    return "UTC" + moment.isoformat(timespec="minutes")[-6:]
