"""CrewAI: its crews, agents and flows served, A2A agents as its tools.

parley.serve(crewai.agent(my_crew))

researcher = Agent(role="Researcher", ..., tools=await crewai.tools("https://..."))
"""

from parley.integrations.serving import missing

try:
    from parley.integrations.crewai.serving import CrewRemoteTool, agent, tools
except ImportError as error:
    if (error.name or "").partition(".")[0] not in ("crewai", "crewai_files"):
        raise
    raise missing("crewai", error) from error

__all__ = ["CrewRemoteTool", "agent", "tools"]
