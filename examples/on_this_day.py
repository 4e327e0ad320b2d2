"""An MCP server that knows what happened on a day of the year, in English and Chinese.

    python examples/on_this_day.py         speaks MCP on stdin and stdout, for any host
    parley serve examples/assistant.py     starts it, and uses its tool
    parley send "What happened on 9 November?"

It needs the package of MCP: pip install "parley-a2a[mcp]"
"""

from datetime import date

EVENTS = {
    (1, 10): (1863, "London opens the first underground railway", "伦敦开通第一条地铁"),
    (1, 15): (2001, "Wikipedia goes online", "维基百科上线"),
    (2, 11): (1990, "Nelson Mandela leaves prison", "纳尔逊·曼德拉出狱"),
    (3, 10): (1876, "Alexander Graham Bell makes the first telephone call", "贝尔打通第一个电话"),
    (3, 12): (1989, "Tim Berners-Lee proposes what becomes the web", "伯纳斯-李提出万维网"),
    (4, 12): (1961, "Yuri Gagarin is the first human in space", "加加林成为第一个进入太空的人"),
    (4, 24): (1970, "China launches its first satellite", "中国发射第一颗人造卫星"),
    (5, 8): (1945, "The Second World War ends in Europe", "第二次世界大战在欧洲结束"),
    (5, 29): (1953, "Hillary and Tenzing stand on Mount Everest", "希拉里和丹增登上珠穆朗玛峰"),
    (6, 16): (1963, "Valentina Tereshkova is the first woman in space", "首位女宇航员升空"),
    (6, 29): (2007, "The first iPhone is sold", "第一部 iPhone 上市"),
    (7, 4): (1776, "The United States declare their independence", "美国宣布独立"),
    (7, 14): (1789, "The Bastille falls in Paris", "巴黎人攻占巴士底狱"),
    (7, 20): (1969, "People land on the Moon", "人类登上月球"),
    (8, 8): (2008, "The Olympic Games open in Beijing", "北京奥运会开幕"),
    (9, 2): (1945, "The Second World War ends", "第二次世界大战结束"),
    (10, 4): (1957, "Sputnik is the first satellite", "第一颗人造卫星斯普特尼克升空"),
    (10, 15): (2003, "Yang Liwei is the first Chinese in space", "杨利伟成为中国首位航天员"),
    (10, 24): (1945, "The United Nations begin", "联合国成立"),
    (11, 9): (1989, "The Berlin Wall opens", "柏林墙开放"),
    (11, 24): (1859, "Darwin publishes On the Origin of Species", "达尔文出版《物种起源》"),
    (12, 10): (1901, "The first Nobel Prizes are given", "首次颁发诺贝尔奖"),
    (12, 17): (1903, "The Wright brothers fly with a motor", "莱特兄弟首次动力飞行"),
}  # fmt: skip
"""The day, the year, and what happened."""


def events_on(month: int, day: int, language: str = "en") -> dict[str, object]:
    """Tell what happened on a day of the year, or on the nearest day of which something is known.

    Args:
        month: 1 to 12
        day: the day of the month
        language: en or zh

    """
    try:
        asked = date(2024, month, day)  # a leap year: it has all days
    except ValueError:
        from mcp.server.mcpserver.exceptions import ToolError

        raise ToolError(f"there is no day {day} in month {month}") from None
    nearest = min(EVENTS, key=lambda each: _distance(date(2024, *each), asked))
    year, english, chinese = EVENTS[nearest]
    event = chinese if language.startswith("zh") else english
    return {"month": nearest[0], "day": nearest[1], "year": year, "event": event}


def _distance(one: date, other: date) -> int:
    days = abs((one - other).days)
    return min(days, 366 - days)


def main() -> None:
    """Serve the tool over stdio."""
    from mcp.server import MCPServer

    server = MCPServer("On this day")
    server.tool()(events_on)
    server.run()


if __name__ == "__main__":
    main()
