"""CrewAI: its crews, agents and flows served, A2A agents as its tools.

parley.serve(crewai.agent(my_crew))

researcher = Agent(role="Researcher", ..., tools=await crewai.tools("https://..."))
"""

from parley.integrations.serving import needs

with needs("crewai"):
    from parley.integrations.crewai.serving import CrewRemoteTool, agent, tools

__all__ = ["CrewRemoteTool", "agent", "tools"]
